"""Real engines with the plugin installed as the image installs it: by copying its folders."""

import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

IMAGE = os.environ.get("FRONTDOOR_ENGINE_IMAGE", "vllm-frontdoor/engine-cpu:0.27.1")
MODELS = os.environ.get("FRONTDOOR_MODELS", "/var/lib/vllm-frontdoor/models")
PLUGIN = Path(__file__).parents[3] / "roles/engine_image/files/cpu_sleep_plugin"

START_SECONDS = 600
CALL_SECONDS = 120

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def docker(*arguments: str) -> str:
    """What `docker` prints; its own complaint when it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


@dataclass
class Engine:
    """A running engine. Memory is in bytes, as the kernel sees it from outside the plugin."""

    container: str
    model: str
    http: httpx.Client
    warm_memory: int = field(default=0)

    def memory(self) -> int:
        """Resident bytes of all processes in the container, without pages of files that they share."""
        statuses = docker("exec", self.container, "sh", "-c", "cat /proc/[0-9]*/status")
        return sum(int(kibibytes) for kibibytes in re.findall(r"RssAnon:\s+(\d+) kB", statuses)) * 1024

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return self.http.post(path, json=body)

    def sleep(self, level: int) -> None:
        self.post(f"/sleep?level={level}&mode=wait").raise_for_status()
        assert self.is_sleeping()

    def wake(self, *tags: str) -> None:
        query = "&".join(f"tags={tag}" for tag in tags)
        self.post(f"/wake_up?{query}").raise_for_status()

    def is_sleeping(self) -> bool:
        return bool(self.http.get("/is_sleeping").json()["is_sleeping"])

    def call_worker(self, method: str, **arguments: Any) -> httpx.Response:
        return self.post("/collective_rpc", {"method": method, "kwargs": arguments})

    def wake_from_level_2(self) -> None:
        """The sequence that makes a level-2 sleeper whole again."""
        self.wake("weights")
        self.call_worker("reload_weights").raise_for_status()
        self.wake("kv_cache")
        assert self.post("/reset_prefix_cache").json() == {"success": True}

    def log(self) -> str:
        done = subprocess.run(
            ["docker", "logs", self.container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.stdout


def create_container(name: str, model: str, options: list[str]) -> None:
    environment = [f"--env={key}={value}" for key, value in ENVIRONMENT.items()]
    server = ["-m", "vllm.entrypoints.openai.api_server", "--model", f"/models/{model}"]
    served = ["--served-model-name", model, "--enforce-eager", "--host", "0.0.0.0", "--port", "8000"]
    docker(
        *("create", "--name", name, "--network", name, "--init", "--shm-size=1g", *environment),
        *(f"--volume={MODELS}:/models:ro", "--entrypoint=python3", IMAGE, *server, *served, *options),
    )


def install_plugin(container: str) -> None:
    packages = docker(
        *("run", "--rm", "--network=none", "--name", f"{container}-look", "--entrypoint=python3", IMAGE),
        *("-c", "import sysconfig; print(sysconfig.get_path('purelib'))"),
    )
    for folder in PLUGIN.glob("frontdoor_cpu_sleep*"):
        docker("cp", str(folder), f"{container}:{packages}/")


@contextmanager
def container_in_its_own_network(model: str, options: list[str]) -> Iterator[str]:
    name = f"sleepplugin-{uuid.uuid4().hex[:8]}"
    docker("network", "create", name)
    try:
        create_container(name, model, options)
        try:
            yield name
        finally:
            docker("rm", "--force", "--volumes", name)
    finally:
        docker("network", "rm", name)


@contextmanager
def engine(model: str, options: list[str]) -> Iterator[Engine]:
    """A starting engine; `wait_until_healthy` waits for it."""
    with container_in_its_own_network(model, options) as container:
        install_plugin(container)
        docker("start", container)
        address = docker(
            "inspect", "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", container
        )
        # No connection twice: the server closes one after an answer of 500 without announcing it.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=f"http://{address}:8000", timeout=CALL_SECONDS, limits=limits) as http:
            yield Engine(container, model, http)


def wait_until_healthy(engine: Engine) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if engine.http.get("/health").is_success:
                return
        except httpx.TransportError:
            running = docker("inspect", "--format={{.State.Running}}", engine.container)
            assert running == "true", f"the engine died while starting:\n{engine.log()[-3000:]}"
        time.sleep(1)
    raise AssertionError(f"not healthy after {START_SECONDS} s:\n{engine.log()[-3000:]}")


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[str, Engine]]:
    """Both engines, started at the same time."""
    with ExitStack() as stack:
        started = {
            "text": stack.enter_context(engine("SmolLM2-135M-Instruct", ["--max-model-len", "2048"])),
            "embed": stack.enter_context(
                engine("all-MiniLM-L6-v2", ["--runner", "pooling", "--convert", "embed"])
            ),
        }
        for each in started.values():
            wait_until_healthy(each)
        yield started
