"""The router with what Ansible renders for it: a key, TLS, origins; asked as `site.yml` asks at its end."""

from __future__ import annotations

import datetime
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from frontdoor_plan import check_router_answer, render
from frontdoor_plan.deployment import router_question
from plan_support import LAUNCHER, ROLES, box, declared, planned, variables

from tests.standin.processes import HTTP, Engine, Router

pytestmark = pytest.mark.stand_in_only("what Ansible renders for the router")

KEY = "sk-a-secret-of-the-test"
ORIGIN = "https://chat.example.org"


def pair() -> tuple[str, str]:
    """A self-signed certificate for a name that isn't 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "box.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


@pytest.fixture(scope="module")
def verify() -> Any:
    """The module that asks every service at the end of a run."""
    path = ROLES / "vllm_service/library/vllm_service_verify.py"
    spec = importlib.util.spec_from_file_location("vllm_service_verify", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@dataclass(frozen=True)
class Front:
    """A router in front of a stand-in, and the certificate it shows."""

    router: Router
    certificate: str

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.router.port}"


def environment_of(files: dict[str, bytes], folder: Path) -> dict[str, str]:
    """The rendered environment without addresses, with the container's folders as folders of the test."""
    found = {}
    for line in files["router/router.env"].decode().splitlines():
        name, _, value = line.partition("=")
        if name.startswith(("ROUTER_", "IDLE_")) and not name.endswith("_ADDRESS"):
            found[name] = value.strip("'\"").replace("/secrets/", f"{folder}/secrets/")
    return found


@pytest.fixture
def front(engines: Callable[..., Engine], tmp_path: Path) -> Iterator[Front]:
    """The router, started with the rendering of a declaration with keys, TLS and CORS."""
    certificate, key = pair()
    raw = variables("rehearsal") | {
        "router_api_keys": [{"name": "alice", "key": KEY}],
        "router_tls_certificate": certificate,
        "router_tls_key": key,
        "router_cors_origins": [ORIGIN],
        "router_observe_interval_seconds": 0.05,
    }
    files = dict(render(planned(raw, box("rehearsal")), LAUNCHER).files)
    (tmp_path / "secrets").mkdir()
    for path, content in files.items():
        if path.startswith("secrets/"):
            (tmp_path / path).write_bytes(content)
    router = Router(tmp_path, environment=environment_of(files, tmp_path))
    router.register(engines().registry_entry())
    router.start()
    yield Front(router, certificate)
    router.stop()


def ask(verify: Any, door: Any) -> Any:
    path, body = verify.question({"name": "text", "model": "text", "task": "generate"})
    return verify.post(door, path, body, time.monotonic() + 60)


def test_the_question_at_the_end_of_a_run_finds_its_way(front: Front, verify: Any) -> None:
    answer = ask(verify, verify.FrontDoor(front.url, KEY, front.certificate))
    assert "Paris" in verify.read_answer("generate", answer)


def test_without_a_key_it_says_that_one_is_needed(front: Front, verify: Any) -> None:
    with pytest.raises(verify.KeyNeededError):
        ask(verify, verify.FrontDoor(front.url, "", front.certificate))


def test_a_wrong_key_is_no_answer(front: Front, verify: Any) -> None:
    with pytest.raises(verify.VerificationError, match="it answers 401"):
        ask(verify, verify.FrontDoor(front.url, "sk-other", front.certificate))


def test_another_certificate_is_not_believed(front: Front, verify: Any) -> None:
    path, body = verify.question({"name": "text", "model": "text", "task": "generate"})
    with pytest.raises(verify.VerificationError, match=r"no connection .*certificate verify failed"):
        verify.post(verify.FrontDoor(front.url, KEY, pair()[0]), path, body, time.monotonic() + 3)


def test_pages_of_the_allowed_origin_and_of_no_other(front: Front) -> None:
    def allowed(origin: str) -> str | None:
        headers = {"Authorization": f"Bearer {KEY}", "Origin": origin}
        answer = HTTP.get(f"{front.url}/v1/models", headers=headers)
        assert answer.status_code == 200
        found: str | None = answer.headers.get("access-control-allow-origin")
        return found

    assert allowed(ORIGIN) == ORIGIN
    assert allowed("https://elsewhere.example.org") is None


def test_plain_http_is_not_answered(front: Front) -> None:
    with pytest.raises(httpx.TransportError):
        HTTP.get(front.url.replace("https", "http") + "/health")


def refusals_of(**changes: Any) -> list[str]:
    """What a router that is started with a rendering would stumble over, as the plan refuses it."""
    raw = variables("rehearsal") | changes
    plan = planned(raw, box("rehearsal"))
    asked = router_question(plan, render(plan, LAUNCHER), declared(raw).desired)
    done = subprocess.run(
        [sys.executable, *asked["program"]],
        input=json.dumps({**asked["question"], "files": asked["files"]}),
        env={"PYTHONPATH": str(ROLES / "router/files")},
        capture_output=True,
        text=True,
        check=True,
    )
    return [refusal.why for refusal in check_router_answer(plan, json.loads(done.stdout))]


def test_before_it_is_replaced_the_router_says_whether_it_would_start() -> None:
    certificate, key = pair()
    keys = [{"name": "alice", "key": KEY}]
    assert refusals_of() == []
    assert refusals_of(router_tls_certificate=certificate, router_tls_key=key, router_api_keys=keys) == []
    (why,) = refusals_of(router_tls_certificate=certificate, router_tls_key=pair()[1])
    assert "ROUTER_TLS_CERTIFICATE and ROUTER_TLS_KEY to a matching pair" in why
    assert "/secrets/tls-certificate.pem" in why and "/tmp" not in why
