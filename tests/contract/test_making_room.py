"""Room for the probes of GPUs: a router puts stand-in engines to sleep, and requests wake them again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.standin.processes import HTTP, Engine, Router, wait_until

REPOSITORY = Path(__file__).parents[2]
ROLE = REPOSITORY / "roles" / "gpu_diag"
FRONT, BACK = (f"GPU-0000000{number}-1111-2222-3333-444444444444" for number in (1, 2))
# A GPU's memory, as nvidia-smi tells of it: little of it is free while the engine on it is awake.
NVIDIA_SMI = """#!{python}
import json, os, urllib.request
os.environ.pop("HTTP_PROXY", None)
def free(engine):
    if engine is None:
        return 40000
    with urllib.request.urlopen(engine + "/is_sleeping", timeout=20) as answer:
        return 40000 if json.load(answer)["is_sleeping"] else 900
print("<nvidia_smi_log><driver_version>595.71.05</driver_version><cuda_version>13.0</cuda_version>")
for number, (uuid, engine) in enumerate({gpus}):
    print(f"<gpu id='00000000:{{number + 61:02X}}:00.0'><uuid>{{uuid}}</uuid>")
    print("<product_name>NVIDIA A800</product_name><fb_memory_usage><total>81920 MiB</total>")
    print(f"<free>{{free(engine)}} MiB</free></fb_memory_usage></gpu>")
print("</nvidia_smi_log>")
"""
RUN = """
import sys
from importlib import util
import ansible.module_utils
from ansible.module_utils import basic
ansible.module_utils.__path__.append(sys.argv[1] + "/module_utils")
basic._ANSIBLE_ARGS, basic._ANSIBLE_PROFILE = sys.argv[2].encode(), "legacy"
spec = util.spec_from_file_location("gpu_diag_room", sys.argv[1] + "/library/gpu_diag_room.py")
module = util.module_from_spec(spec)
spec.loader.exec_module(module)
module.main()
"""

ASK = """
import sys
from urllib.request import Request, urlopen
urlopen(Request(sys.argv[1], data=sys.argv[2].encode(), headers={"Content-Type": "application/json"}))
"""


@dataclass
class Box:
    """An instance's folder, its router, and a machine with two GPUs."""

    root: Path
    router: Router
    bin: Path

    def run(self, state: str, check: bool = False, **options: Any) -> dict[str, Any]:
        """What the module answers."""
        given = {"root": str(self.root), "state": state, "_ansible_check_mode": check, **options}
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": given})
        environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HTTP_PROXY": "http://127.0.0.1:9",
        }
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(ROLE), arguments],
            capture_output=True, text=True, check=False, env=environment, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stderr + done.stdout
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def cordoned(self) -> list[str]:
        """Devices on which nothing is woken."""
        return list(HTTP.get(f"{self.router.admin}/admin/status").json()["cordoned"])


@pytest.fixture
def engine(engines: Callable[..., Engine]) -> Engine:
    """The engine that lies on the front GPU."""
    return engines(device=FRONT)


@pytest.fixture
def box(tmp_path: Path, engine: Engine, routers: Callable[..., Router]) -> Box:
    """One awake service on the front GPU, none on the other."""
    router = routers(ROUTER_ADMIN_WAIT_MAX="60")
    router.register(engine.registry_entry())
    router.start()
    wait_until(lambda: router.order("services/text/wake").status_code == 200, 60, "text awake")
    root = tmp_path / "instance"
    (root / "router").mkdir(parents=True)
    (root / "secrets").mkdir()
    (root / "router" / "router.env").write_text(f"ROUTER_ADMIN_ADDRESS=127.0.0.1:{router.admin_port}\n")
    (root / "secrets" / "admin-token").write_text((router.folder / "token").read_text() + "\n")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    text = NVIDIA_SMI.format(python=sys.executable, gpus=[(FRONT, engine.url), (BACK, None)])
    (bin_ / "nvidia-smi").write_text(text)
    (bin_ / "nvidia-smi").chmod(0o755)
    return Box(root, router, bin_)


def test_who_must_make_room_is_said_and_nothing_is_touched(box: Box) -> None:
    seen = box.run("seen")
    assert "must make room: text (awake)" in seen["lines"][0]
    assert "gpu_diag_make_room=true" in seen["lines"][1]
    predicted = box.run("made", check=True)
    assert (predicted["changed"], predicted["services"], predicted["devices"]) == (True, ["text"], [FRONT])
    assert box.router.status("text")["depth"] == "awake"
    assert box.cordoned() == []


def test_services_sleep_for_the_probes_and_wake_by_a_request_afterwards(box: Box, engine: Engine) -> None:
    made = box.run("made")
    assert (made["changed"], made["services"], made["devices"]) == (True, ["text"], [FRONT])
    assert box.router.status("text")["depth"] == "sleeping"
    assert "weights" in engine.state()["sleeping"]
    refused = box.router.chat(engine.model)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert box.router.status("text")["depth"] == "sleeping", "a request woke it under the probe"

    again = box.run("made")
    assert (again["changed"], again["services"], again["devices"]) == (False, [], [])

    back = box.run("given_back", services=made["services"], devices=made["devices"])
    assert back["changed"]
    assert box.cordoned() == []
    assert box.router.chat(engine.model).status_code == 200
    assert box.router.status("text")["depth"] == "awake"


def test_a_pinned_service_is_told_and_nothing_stays_cordoned(box: Box) -> None:
    assert box.router.order("services/text/pin").status_code == 200
    failed = box.run("made")
    assert failed["failed"] and "pinned awake; order unpin first" in failed["msg"]
    assert box.cordoned() == []
    assert box.router.status("text")["depth"] == "awake"


def test_a_busy_service_is_waited_for_no_longer_than_told(box: Box, engine: Engine) -> None:
    engine.fault(hang=["/v1/chat/completions"])
    body = json.dumps({"model": engine.model, "messages": [{"role": "user", "content": "?"}]})
    asking = subprocess.Popen(
        [sys.executable, "-c", ASK, f"{box.router.url}/v1/chat/completions", body],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: box.router.status("text")["in_flight"] == 1, 30, "a request in flight")
        failed = box.run("made", timeout_seconds=2)
        assert (
            failed["failed"] and "awake, and not sleeping within 2 s. Requests in flight: 1" in failed["msg"]
        )
        assert box.cordoned() == []
    finally:
        asking.kill()
        asking.wait()


def test_memory_that_something_else_holds_is_told_in_time(box: Box) -> None:
    memory = "<fb_memory_usage><free>5 MiB</free></fb_memory_usage>"
    xml = f"<nvidia_smi_log><gpu><uuid>{FRONT}</uuid>{memory}</gpu></nvidia_smi_log>"
    (box.bin / "nvidia-smi").write_text(f"#!{sys.executable}\nprint('{xml}')\n")
    failed = box.run("made", timeout_seconds=3)
    assert failed["failed"] and "something else uses it" in failed["msg"]
    assert box.cordoned() == []


def test_a_router_that_does_not_answer_is_said(box: Box) -> None:
    box.router.kill()
    seen = box.run("seen")
    assert not seen.get("failed")
    assert "does not answer" in seen["lines"][-1]
    failed = box.run("made")
    assert failed["failed"] and "does not answer" in failed["msg"]
    (box.root / "router" / "router.env").unlink()
    assert "no router is deployed" in box.run("seen")["lines"][-1]


def test_a_token_that_is_not_the_routers_is_told(box: Box) -> None:
    (box.root / "secrets" / "admin-token").write_text("another\n")
    failed = box.run("made")
    assert failed["failed"] and "refuses (401)" in failed["msg"]


# Docker's command, as the role gives it: the probe looks whether the engine on its GPU sleeps.
DOCKER = """#!{python}
import json, os, sys, urllib.request
os.environ.pop("HTTP_PROXY", None)
if "inspect" in sys.argv:
    print("sha256:" + "0" * 64)
elif "run" in sys.argv and "gpu_diag" in sys.argv:
    with urllib.request.urlopen("{engine}/is_sleeping", timeout=20) as answer:
        asleep = json.load(answer)["is_sleeping"]
    open("{record}", "a").write(json.dumps(asleep) + chr(10))
    if os.environ.get("PROBE_FAILS"):
        sys.exit("the driver is not loaded")
    print(json.dumps({{"verdict": "clean", "class": None, "evidence": []}}))
else:
    sys.exit("there is no daemon here")
"""


@dataclass
class Playbook:
    """`playbooks/diagnose.yml` on this machine, with an instance of its own in a folder of its own."""

    box: Box
    folder: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """What ansible-playbook says."""
        line = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            str(REPOSITORY / "playbooks/diagnose.yml"),
        ]
        line += ["-i", str(self.folder / "hosts.json"), "--tags", "p2p", *arguments]
        variables = {
            **os.environ,
            "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
            "PATH": f"{self.box.bin}:{os.environ['PATH']}",
            **environment,
        }
        done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False, timeout=600)
        print(done.stdout, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def slept_while_probed(self) -> list[bool]:
        """Whether the engine slept, for each probe."""
        record = self.folder / "probes"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


@pytest.fixture
def playbook(tmp_path: Path, box: Box, engine: Engine) -> Playbook:
    """An inventory of this machine, with one service on the front GPU."""
    text = DOCKER.format(python=sys.executable, engine=engine.url, record=tmp_path / "probes")
    (box.bin / "docker").write_text(text)
    (box.bin / "docker").chmod(0o755)
    service = {"slot": 1, "model": "fetched-later", "devices": ["gpu0"], "memory_fraction": 0.5}
    machine = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "engine_image_reference": "engine:1",
        "gpu_diag_evidence": str(tmp_path / "evidence"),
        "gpu_diag_install_dir": str(tmp_path / "diag"),
        "gpu_diag_metrics_file": str(tmp_path / "gpu_diag.prom"),
        "gpu_diag_router_root": str(box.root),
        "model_files_packages": [
            {"name": "fetched-later", "requirement": "one==1", "source": "m", "files": {}}
        ],
        "vllm_service_services": {"text": service},
    }
    inventory = {"frontdoor": {"hosts": {"localhost": machine}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    return Playbook(box, tmp_path)


def test_the_playbook_names_who_must_make_room_and_touches_nothing(playbook: Playbook) -> None:
    done = playbook.run()
    assert done.returncode == 0
    assert "must make room: text (awake)" in done.stdout
    assert playbook.slept_while_probed() == [False]
    assert playbook.box.router.status("text")["depth"] == "awake"


def test_the_playbook_makes_room_for_the_probe_and_gives_it_back(playbook: Playbook, engine: Engine) -> None:
    done = playbook.run("-e", "gpu_diag_make_room=true")
    assert done.returncode == 0
    assert "Put to sleep for the probes: text." in done.stdout
    assert playbook.slept_while_probed() == [True]
    assert playbook.box.cordoned() == []
    assert playbook.box.router.chat(engine.model).status_code == 200


def test_the_room_is_given_back_where_the_probe_cannot_run(playbook: Playbook, engine: Engine) -> None:
    done = playbook.run("-e", "gpu_diag_make_room=true", PROBE_FAILS="1")
    assert done.returncode != 0
    assert "the driver is not loaded" in done.stdout
    assert playbook.slept_while_probed() == [True]
    assert playbook.box.cordoned() == []
    assert playbook.box.router.chat(engine.model).status_code == 200


def test_a_playbook_that_cannot_make_room_probes_nothing(playbook: Playbook) -> None:
    assert playbook.box.router.order("services/text/pin").status_code == 200
    done = playbook.run("-e", "gpu_diag_make_room=true")
    assert done.returncode != 0
    assert "pinned awake" in done.stdout
    assert playbook.slept_while_probed() == []
    assert playbook.box.cordoned() == []
