"""What deploying does to those who are being served: one service at a time, and back where it fails."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from asking import Asker, arguments, declared, embed, releases, renewed, services, stream_text
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from rehearsal_box import (
    ENDPOINT,
    PORT,
    ROOT,
    Deployed,
    Run,
    container_ids,
    container_name,
    docker,
    service_status,
)

INVENTORY = ("-i", "inventory/rehearsal")
BROKEN_IMAGE = "vllm-frontdoor-test/broken:1"
KEY = "sk-a-key-of-the-end-to-end-test"


@pytest.fixture(scope="module", autouse=True)
def as_it_was(deployed: Deployed) -> Iterator[None]:
    """What the last failure left to be put right is put right before other tests look."""
    yield
    deployed.box.succeed("rehearse")


@pytest.fixture(scope="module")
def shorter(deployed: Deployed) -> Run:
    """The embedding service with a shorter context, deployed while clients use both services."""
    before = container_ids()
    with Asker(stream_text) as streams, Asker(embed) as questions:
        run = deployed.box.succeed("rehearse", "-e", services("embed", max_model_len=128))
        questions.wait_for_another()
    assert (streams.failures, streams.told_to_come_back) == ([], 0)
    assert questions.failures == []
    assert renewed(before) == {container_name("embed")}
    return run


def test_changing_one_service_restarts_it_alone_and_no_client_notices_more_than_a_wait(shorter: Run) -> None:
    assert "128" in arguments(container_name("embed"))
    assert service_status("embed")["conditions"] == []
    assert "embed: proven, canary recorded" in shorter.output


def test_a_second_run_changes_nothing(deployed: Deployed, shorter: Run) -> None:
    before, kept = container_ids(), releases()
    again = deployed.box.succeed("rehearse", "-e", services("embed", max_model_len=128))
    assert again.changed == 0
    assert (container_ids(), releases()) == (before, kept)


def test_going_back_takes_one_command(deployed: Deployed, shorter: Run) -> None:
    before, kept = container_ids(), releases()
    predicted = deployed.box.succeed("rollback", *INVENTORY, "--check")
    assert container_ids() == before
    with Asker(embed) as questions:
        back = deployed.box.succeed("rollback", *INVENTORY)
    assert questions.failures == []
    assert predicted.changes == back.changes
    assert renewed(before) == {container_name("embed")}
    assert "128" not in arguments(container_name("embed"))
    assert releases()[-1] == kept[-1] + 1
    # It went back to what the playbook declares: there is nothing left to do.
    assert deployed.box.succeed("rehearse").changed == 0


def test_a_release_that_was_altered_by_hand_is_refused(deployed: Deployed, shorter: Run) -> None:
    before = container_ids()
    target = ROOT / "releases" / str(releases()[-2])
    for path, old, new in (
        (target / "release.json", '"embed"', '"EMBED"'),
        (target / "files" / "engines" / "compose.yml", "cap_drop", "cap_add"),
    ):
        content = path.read_text()
        path.write_text(content.replace(old, new))
        assert "altered by hand" in deployed.box.refuse("rollback", *INVENTORY).output
        path.write_text(content)
    assert container_ids() == before


@pytest.fixture(scope="module")
def broken_image(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The engine's image, in which the engine ends at once when it runs behind its launcher."""
    folder = tmp_path_factory.mktemp("broken")
    engine = docker("inspect", "--format", "{{.Image}}", container_name("text"))
    docker("tag", engine, "vllm-frontdoor-test/engine:1")
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.path.exists('/launcher') and not any('launcher.py' in word for word in sys.orig_argv):\n"
        "    print('this image is broken', file=sys.stderr, flush=True)\n"
        "    os._exit(3)\n"
    )
    (folder / "Dockerfile").write_text(
        "FROM vllm-frontdoor-test/engine:1\nCOPY sitecustomize.py /broken/\nENV PYTHONPATH=/broken\n"
    )
    docker("build", "--quiet", "--tag", BROKEN_IMAGE, str(folder))
    yield BROKEN_IMAGE
    docker("image", "rm", "--force", BROKEN_IMAGE, "vllm-frontdoor-test/engine:1")


def test_a_broken_image_goes_back_and_the_other_service_is_not_touched(
    deployed: Deployed, broken_image: str
) -> None:
    deployed.box.succeed("rehearse")
    before, kept = container_ids(), releases()
    with Asker(embed) as questions, Asker(stream_text) as streams:
        failed = deployed.box.refuse("rehearse", "-e", f"vllm_service_image={broken_image}")
    assert (questions.failures, questions.told_to_come_back) == ([], 0)
    assert streams.failures == []
    assert renewed(before) == {container_name("text")}
    for words in ("this image is broken", f"went back to release {kept[-1]}", "goes on as it is, since text"):
        assert words in failed.output
    assert releases() == kept
    assert service_status("text")["conditions"] == []
    with Asker(stream_text) as streams:
        pass
    assert streams.failures == []


def test_after_a_failure_the_next_run_puts_files_right_and_touches_no_container(
    deployed: Deployed, broken_image: str
) -> None:
    before = container_ids()
    repaired = deployed.box.succeed("rehearse")
    assert container_ids() == before
    only_files_and_proofs = (one.startswith("file ") or one.endswith(", proven") for one in repaired.changes)
    assert all(only_files_and_proofs), repaired.changes
    assert deployed.box.succeed("rehearse").changed == 0


def test_a_service_that_goes_lets_what_is_under_way_end(deployed: Deployed) -> None:
    deployed.box.succeed("rehearse")
    alone = json.dumps({"vllm_service_services": {"embed": declared()["embed"]}})
    with Asker(stream_text) as streams:
        gone = deployed.box.succeed("rehearse", "-e", alone)
    assert f"container {container_name('text')}: no longer planned, removed" in gone.changes
    assert set(container_ids()) == {container_name("embed"), container_name("router")}
    tokens = Path("/opt/vllm-frontdoor/rehearsal/secrets/launchers")
    assert [path.name for path in tokens.iterdir()] == ["embed"]
    # Afterwards there is no such model; until then every stream came to its end.
    assert all("NotFoundError" in failure for failure in streams.failures), streams.failures
    deployed.box.succeed("rehearse")
    with Asker(stream_text) as streams:
        pass
    assert streams.failures == []


# ---------------------------------------------------------------------------------------------- the router


def pair(folder: Path) -> tuple[str, str]:
    """A self-signed certificate and its key, as PEM texts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "box.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


@contextmanager
def variables(folder: Path, **values: Any) -> Iterator[tuple[str, str]]:
    """Extra variables by a file, as a vault would bring them: not on the command line."""
    path = folder / "secrets.json"
    path.write_text(json.dumps(values))
    yield "-e", f"@{path}"


def test_keys_tls_and_cors(deployed: Deployed, tmp_path: Path) -> None:
    deployed.box.succeed("rehearse")
    before = container_ids()
    certificate, key = pair(tmp_path)
    (tmp_path / "certificate.pem").write_text(certificate)
    secrets = {
        "router_api_keys": [{"name": "test", "key": KEY}],
        "router_tls_certificate": certificate,
        "router_tls_key": key,
        "router_cors_origins": ["https://chat.example.org"],
    }
    with variables(tmp_path, **secrets) as extra:
        run = deployed.box.succeed("rehearse", *extra, "--diff")
        assert KEY not in run.output and key.splitlines()[1] not in run.output
        assert "The capital of France is Paris." in run.output
        assert renewed(before) == {container_name("router")}
        assert deployed.box.succeed("rehearse", *extra).changed == 0
    assert KEY not in docker("inspect", container_name("router"))
    listing = ["curl", "--silent", "--cacert", str(tmp_path / "certificate.pem"), "--include"]
    listing += ["--connect-to", f"box.example.org:{PORT}:127.0.0.1:{PORT}"]
    listing += ["-H", "Origin: https://chat.example.org", f"https://box.example.org:{PORT}/v1/models"]
    asked = subprocess.run([*listing, "-H", f"Authorization: Bearer {KEY}"], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert "200 OK" in asked.stdout.splitlines()[0]
    assert "access-control-allow-origin: https://chat.example.org" in asked.stdout.lower()
    unknown = subprocess.run([*listing, "-H", "Authorization: Bearer other"], capture_output=True, text=True)
    assert " 401 " in unknown.stdout.splitlines()[0]


def test_a_certificate_without_its_key_is_refused_while_the_router_serves(
    deployed: Deployed, tmp_path: Path
) -> None:
    deployed.box.succeed("rehearse")
    certificate, _ = pair(tmp_path)
    _, other_key = pair(tmp_path)
    before = container_ids()
    with variables(tmp_path, router_tls_certificate=certificate, router_tls_key=other_key) as extra:
        failed = deployed.box.refuse("rehearse", *extra)
    assert "would not start with its settings" in failed.output
    assert "ROUTER_TLS_CERTIFICATE" in failed.output
    assert container_ids() == before
    assert httpx.get(f"{ENDPOINT}/v1/models", timeout=30).status_code == 200
    assert deployed.box.succeed("rehearse").changed == 0
