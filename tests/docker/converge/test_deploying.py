"""First deployments, changes of the plan, failures, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import IMAGE, OTHER_IMAGE, Box, docker

pytestmark = pytest.mark.docker

ROLE = Path(__file__).parents[3] / "roles/vllm_service"


def first_sentences(box: Box) -> list[str]:
    return [
        f"directory {box.root}: missing, created",
        f"directory {box.state}/router: missing, created",
        *(
            f"file {path}: missing, written"
            for path in (
                "engines/compose.yml",
                "engines/text.env",
                "engines/embed.env",
                "registry/registry.json",
            )
        ),
        "secret secrets/admin-token: missing, created",
        *(f"network {box.name(service)}: missing, created" for service in ("embed", "text")),
        *(f"container {box.name(service)}: missing, created" for service in ("text", "embed", "front")),
    ]


def test_fresh_box(fresh_box: Box) -> None:
    fresh_box.repair(*first_sentences(fresh_box), renewed=("text", "embed", "front"))


def test_check_mode_touches_nothing(fresh_box: Box) -> None:
    assert fresh_box.run(check=True)["changes"] == first_sentences(fresh_box)
    assert not fresh_box.root.exists() and not fresh_box.state.exists()


def test_definition_and_environment_changes_renew_only_their_service(fresh_box: Box) -> None:
    fresh_box.run()
    fresh_box.services["text"]["mem_limit"] = "96m"
    fresh_box.repair(
        "file engines/compose.yml: content differs, rewritten",
        f"container {fresh_box.name('text')}: definition changed, recreated",
        renewed=("text",),
    )
    fresh_box.environment_files["embed"] = "MODEL=c\n"
    fresh_box.repair(
        "file engines/embed.env: content differs, rewritten",
        f"container {fresh_box.name('embed')}: environment file changed, recreated",
        renewed=("embed",),
    )
    environment = docker("inspect", "--format", "{{json .Config.Env}}", fresh_box.name("embed"))
    assert "MODEL=c" in json.loads(environment)


def test_a_changed_image_renews_only_its_service(fresh_box: Box) -> None:
    fresh_box.run()
    fresh_box.services["front"]["image"] = OTHER_IMAGE
    fresh_box.repair(
        "file engines/compose.yml: content differs, rewritten",
        f"container {fresh_box.name('front')}: definition changed and image changed, recreated",
        renewed=("front",),
    )


def test_a_service_that_is_no_longer_planned_goes_without_a_trace(fresh_box: Box) -> None:
    tokens = fresh_box.root / "secrets/launchers"
    tidied = {"path": str(tokens), "holds": [*fresh_box.services]}
    fresh_box.options["tidied"] = [tidied]
    fresh_box.run()
    for name in ("text", "embed"):
        (tokens / name).mkdir(parents=True)
        (tokens / name / "token").write_text("a token")
    docker("run", "-d", "--init", "--name", "converge-bystander", IMAGE, "sleep", "1000")
    try:
        del fresh_box.services["embed"]
        tidied["holds"] = [*fresh_box.services]
        fresh_box.repair(
            "file engines/compose.yml: content differs, rewritten",
            f"container {fresh_box.name('embed')}: no longer planned, removed",
            f"network {fresh_box.name('embed')}: no longer planned, removed",
            "file engines/embed.env: no longer planned, removed",
            f"leftover {tokens}/embed: no longer planned, removed",
        )
        assert not (fresh_box.root / "engines/embed.env").exists()
        assert (tokens / "text" / "token").exists()
        assert docker("inspect", "--format", "{{.State.Status}}", "converge-bystander") == "running"
    finally:
        docker("rm", "-f", "converge-bystander")


def test_all_services_gone(fresh_box: Box) -> None:
    fresh_box.run()
    fresh_box.services.clear()
    assert len(fresh_box.run()["changes"]) == 8  # compose file, 3 containers, 2 networks, 2 environment files
    assert fresh_box.run()["changes"] == []


def test_a_failing_container_is_reported_with_its_log_and_the_others_come_up(fresh_box: Box) -> None:
    fresh_box.services["text"]["command"] = [
        "sh",
        "-c",
        "printf 'line 1\\nline 2\\nline 3\\nbad\\n' >&2; exit 3",
    ]
    fresh_box.services["embed"]["healthcheck"] |= {
        "test": ["CMD", "sh", "-c", "exit 1"],
        "start_period": "0s",
    }
    fresh_box.services["embed"]["healthcheck"] |= {"retries": 2}
    fresh_box.options |= {"log_lines": 3, "healthy_timeout_seconds": 600}
    started = time.monotonic()
    failed = fresh_box.run()
    assert time.monotonic() - started < 300, "it waited for what had failed already"
    assert failed["failed"] and failed["changes"] == first_sentences(fresh_box)
    text, embed = sorted(failed["problems"], reverse=True)
    assert re.fullmatch(
        rf"container {fresh_box.name('text')}: ended and was restarted \d+ times, last with exit code 3; "
        r"its last 3 log lines:\nline 2\nline 3\nbad",
        text,
    )
    assert embed == f"container {fresh_box.name('embed')}: is unhealthy; it wrote no log"
    assert failed["msg"].count("container ") == 2
    assert fresh_box.name("front") in fresh_box.ids()
    # Nothing differs now, and yet the box is not well: a second run must not pass.
    again = fresh_box.run()
    assert again["failed"] and again["changes"] == []
    fresh_box.services["text"] = fresh_box.engine("text") | {
        "networks": fresh_box.services["text"]["networks"]
    }
    fresh_box.services["embed"] = fresh_box.engine("embed") | {
        "networks": fresh_box.services["embed"]["networks"]
    }
    fresh_box.repair(
        "file engines/compose.yml: content differs, rewritten",
        *(f"container {fresh_box.name(s)}: definition changed, recreated" for s in ("text", "embed")),
        renewed=("text", "embed"),
    )


def test_a_container_that_ends_for_good(fresh_box: Box) -> None:
    fresh_box.services["front"] |= {"restart": "no", "command": ["sh", "-c", "exit 0"]}
    failed = fresh_box.run()
    assert failed["problems"] == [
        f"container {fresh_box.name('front')}: ended with exit code 0; it wrote no log"
    ]


def test_a_container_that_never_gets_healthy(fresh_box: Box) -> None:
    fresh_box.services["text"]["healthcheck"] |= {
        "test": ["CMD", "sh", "-c", "exit 1"],
        "start_period": "600s",
    }
    fresh_box.options["healthy_timeout_seconds"] = 15
    failed = fresh_box.run()
    assert failed["problems"] == [
        f"container {fresh_box.name('text')}: not healthy within 15 seconds; it wrote no log"
    ]


def test_a_container_that_cannot_be_created_does_not_stop_the_others(fresh_box: Box) -> None:
    fresh_box.services["front"]["volumes"] = [
        {"type": "bind", "source": "/no/such/folder", "target": "/x", "bind": {"create_host_path": False}}
    ]
    problems = fresh_box.run()["problems"]
    assert len(problems) == 1, problems
    problem = problems[0]
    assert problem.startswith(f"container {fresh_box.name('front')}: cannot be created: ")
    assert "/no/such/folder" in problem
    assert set(fresh_box.ids()) == {fresh_box.name("text"), fresh_box.name("embed")}
    del fresh_box.services["front"]["volumes"]
    fixed = fresh_box.run()
    assert not fixed.get("failed"), fixed
    assert fresh_box.run()["changes"] == []


def test_a_foreign_container_with_our_name(fresh_box: Box) -> None:
    name = fresh_box.name("text")
    foreign = docker("run", "-d", "--init", "--name", name, OTHER_IMAGE, "sleep", "1000")
    try:
        for check in (True, False):
            refused = fresh_box.run(check=check)
            assert refused["failed"]
            assert refused["problems"] == [
                f"container {name}: a container that is not ours holds this name "
                f"(id {foreign[:12]}, image {OTHER_IMAGE}, no Compose project); rename or remove it"
            ]
        assert not (fresh_box.root / "engines").exists() and fresh_box.ids() == {}
    finally:
        docker("rm", "-f", foreign)


def test_a_missing_image_is_refused_before_anything_is_touched(fresh_box: Box) -> None:
    fresh_box.services["front"]["image"] = "converge-test-nowhere:1"
    sentence = (
        "image converge-test-nowhere:1: not on this machine, needed by front; load, pull or build it first"
    )
    refused = fresh_box.run()
    assert (refused["failed"], refused["msg"]) == (True, sentence)
    assert not (fresh_box.root / "engines").exists() and fresh_box.ids() == {}
    predicted = fresh_box.run(check=True)
    # The instance's folder is there by now: it holds the lock.
    assert predicted["changes"] == first_sentences(fresh_box)[1:]
    assert [one for one in predicted["warnings"] if sentence in str(one)]


def test_no_docker_daemon(fresh_box: Box) -> None:
    fresh_box.options["docker_host"] = "unix:///no/such/docker.sock"
    refused = fresh_box.run()
    assert refused["failed"]
    assert refused["msg"].startswith("Docker does not answer at unix:///no/such/docker.sock: ")
    assert not (fresh_box.root / "engines").exists()
    assert fresh_box.run(check=True)["changes"] == first_sentences(fresh_box)[1:]


def test_no_compose_plugin(fresh_box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A client with neither a plugin of its user nor one of the machine.
    here = tmp_path / "bin"
    here.mkdir()
    (here / "docker").symlink_to("/usr/bin/docker")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        script = '#!/bin/sh\n[ "$1" != compose ] && exec /usr/bin/docker "$@"\nexit 1\n'
        (here / "docker").unlink()
        (here / "docker").write_text(script)
        (here / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}:/usr/bin:/bin")
    refused = fresh_box.run()
    assert refused["msg"] == ("Docker has no Compose plugin on this machine: `docker compose version` fails")


def test_no_docker_at_all(fresh_box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = fresh_box.run()
    assert refused["msg"] == "Docker is not installed on this machine: there is no docker command"


def test_a_folder_where_a_file_belongs(fresh_box: Box) -> None:
    (fresh_box.root / "engines/text.env").mkdir(parents=True)
    refused = fresh_box.run()
    assert refused["problems"] == [
        f"file engines/text.env: a directory lies at {fresh_box.root}/engines/text.env; move it away"
    ]


def test_an_unknown_owner_and_a_bad_mode(fresh_box: Box) -> None:
    fresh_box.files["registry/registry.json"]["owner"] = "nobody-of-this-name"
    assert fresh_box.run()["msg"] == (
        "file registry/registry.json: its owner nobody-of-this-name is no user of this machine"
    )
    fresh_box.files["registry/registry.json"] = {"content": "", "mode": "rw-r--r--"}
    assert fresh_box.run()["msg"] == (
        "file registry/registry.json: its mode 'rw-r--r--' is not three or four octal digits, such as 0644"
    )


def test_two_runs_at_once(fresh_box: Box) -> None:
    fresh_box.services["front"] |= {
        "healthcheck": {"test": ["CMD", "true"], "interval": "4s", "timeout": "2s", "retries": 3}
    }
    first = fresh_box.start()
    lock = fresh_box.root / ".deploy.lock"
    deadline = time.monotonic() + 60
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = fresh_box.run()
    holder = json.loads(lock.read_text())
    assert refused["failed"] and re.fullmatch(
        rf"{fresh_box.root}: another run deploys this instance: process {holder['pid']} "
        rf"of user {holder['user']} since {re.escape(holder['since'])}, for \d+ s; "
        "wait for it to end, then run again",
        refused["msg"],
    )
    assert holder["pid"] == first.pid
    output, _ = first.communicate(timeout=60)
    assert json.loads(output)["changed"] is True
    assert fresh_box.run()["changes"] == []


def test_a_lock_of_a_run_that_died_holds_nobody(fresh_box: Box) -> None:
    first = fresh_box.start()
    lock = fresh_box.root / ".deploy.lock"
    deadline = time.monotonic() + 60
    while not (lock.exists() and lock.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.communicate()
    finished = fresh_box.run()
    assert not finished.get("failed"), finished
    assert fresh_box.run()["changes"] == []


def test_diff_shows_files_and_no_secrets(fresh_box: Box) -> None:
    fresh_box.files["secrets/api.env"] = {"secret_content": "KEY=hush-hush-1\n", "mode": "0640"}
    fresh_box.run()
    fresh_box.files["secrets/api.env"]["secret_content"] = "KEY=hush-hush-2\n"
    fresh_box.environment_files["text"] = "MODEL=z\n"
    (fresh_box.root / "engines/embed.env").chmod(0o600)
    (fresh_box.root / "secrets/admin-token").unlink()
    fresh_box.files["engines/launcher.py"] = {"content": "pass\n" * 500}
    for check in (True, False):
        result = fresh_box.run(check=check, diff=True)
        shown = {one["after_header"].removeprefix(f"{fresh_box.root}/"): one for one in result["diff"]}
        programs = {"engines/launcher.py"}
        assert set(shown) == programs | {"engines/text.env", "engines/embed.env", "secrets/api.env"}
        assert shown["engines/launcher.py"]["after"] == "(500 lines)\n", "a new program is not shown whole"
        assert (shown["engines/text.env"]["before"], shown["engines/text.env"]["after"]) == (
            "MODEL=a\n",
            "MODEL=z\n",
        )
        assert shown["engines/embed.env"]["before"] == "mode: 0600\nowner: 0:0\n"
        assert "hush-hush" not in json.dumps(result)
    token = (fresh_box.root / "secrets/admin-token").read_text().strip()
    assert token not in json.dumps(result)


class Router:
    """Stands for the router's admin listener: counts what it is told, and answers as it is ordered to."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []
        self.status = 200
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                router.heard.append((self.path, self.headers["Authorization"]))
                body = json.dumps({"error": {"message": "the registry is no JSON"}}).encode()
                self.send_response(router.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def test_the_router_is_told_of_a_changed_registry(fresh_box: Box) -> None:
    router = Router()
    fresh_box.options["reload"] = {
        "url": router.url,
        "token_file": "secrets/admin-token",
        "when_changed": "registry/",
        "service": "front",
    }
    # Its container starts in the same run, so it reads the registry by itself.
    fresh_box.run()
    assert router.heard == []
    fresh_box.files["registry/registry.json"]["content"] = '{"services": [1]}\n'
    fresh_box.repair(
        "file registry/registry.json: content differs, rewritten",
        "router: registry/registry.json changed, reloaded",
    )
    token = (fresh_box.root / "secrets/admin-token").read_text().strip()
    assert router.heard == [("/admin/reload", f"Bearer {token}")]
    # Other files are none of its business, and neither is a registry that only its own new start reads.
    fresh_box.environment_files["text"] = "MODEL=q\n"
    fresh_box.run()
    (fresh_box.root / "registry/registry.json").write_text("forged")
    docker("rm", "-f", fresh_box.name("front"))
    fresh_box.run()
    assert len(router.heard) == 1
    # A reload that fails is not forgotten, although the file is right by the next run.
    (fresh_box.root / "registry/registry.json").write_text("forged")
    router.status = 500
    failed = fresh_box.run()
    answer = f"{router.url}/admin/reload answered 500: the registry is no JSON"
    assert failed["problems"] == [f"router: could not be told to reload: {answer}"]
    router.status = 200
    fresh_box.repair("router: an earlier reload did not succeed, reloaded")
    router.server.shutdown()


def test_through_ansible(fresh_box: Box) -> None:
    """As a role runs it: ansible finds the module and its module_utils, and speaks of changes and diffs."""
    playbook = [{
        "hosts": "localhost", "gather_facts": False, "connection": "local",
        "tasks": [{
            "name": "Converge",
            "vllm_service_converge": fresh_box.arguments(),
            "register": "deployed",
        }, {
            "name": "Tell",
            "ansible.builtin.debug": {"var": "deployed.changes"},
        }],
    }]  # fmt: skip
    path = fresh_box.folder / "playbook.json"
    path.write_text(json.dumps(playbook))

    def ansible(*options: str) -> str:
        program = Path(sys.executable).parent / "ansible-playbook"
        done = subprocess.run(
            [
                program,
                "-i",
                "localhost,",
                "-e",
                f"ansible_python_interpreter={sys.executable}",
                *options,
                path,
            ],
            env={
                **os.environ,
                "ANSIBLE_LIBRARY": str(ROLE / "library"),
                "ANSIBLE_MODULE_UTILS": f"{ROLE / 'module_utils'}:{ROLE.parent / 'gpu_diag/module_utils'}",
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout

    for options in (("--check", "--diff"), ()):
        output = ansible(*options)
        assert "changed=1" in output
        for sentence in first_sentences(fresh_box):
            assert json.dumps(sentence) in output
    assert "changed=0" in ansible()
    (fresh_box.root / "engines/text.env").write_text("MODEL=forged\n")
    assert "-MODEL=forged\n+MODEL=a\n" in ansible("--check", "--diff")
