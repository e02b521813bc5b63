"""Runs the plan's action plugin through a real ansible-playbook, on recorded boxes.

The roles are copied, and the modules at the edge of the machine are replaced in the copy: those that look at
the box answer with a recorded box (tests run on machines without three GPUs), those that change the box write
down what they were asked to bring about, and the image's parser takes everything unless the box says
otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plan_support import LAUNCHER, REPOSITORY, ROLES

_LOOKS = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in
    ("docker_host", "images", "paths", "ports", "evidence", "instance")}, supports_check_mode=True)
with open(os.environ["RECORDED_BOX"]) as stored:
    module.exit_json(changed=False, box=json.load(stored))
"""

_LOOKS_INTO_FOLDERS = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in ("folders", "calibration")},
    supports_check_mode=True)
with open(os.environ["RECORDED_BOX"]) as stored:
    box = json.load(stored)
module.exit_json(changed=False, models=box.get("models"), calibration=box.get("calibration"))
"""

_PARSES = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in
    ("docker_host", "image", "program", "question", "files", "cache", "name")}, supports_check_mode=True)
topic = "settings" if "environment" in module.params["question"] else "arguments"
with open(os.environ["RECORDED_BOX"]) as stored:
    box = json.load(stored)
unknown, commands = box.get("unknown_argument"), module.params["question"].get("commands", {})
problems = {name: "no such argument" for name, words in commands.items() if unknown in words}
answer = box.get(topic) or {"version": "0.27.1", "sleep_mode": True, "problems": problems}
module.exit_json(changed=False, answer=answer)
"""

_CLEARS = """
from ansible.module_utils.basic import AnsibleModule
names = ("folder", "script", "config", "unit")
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in names}, supports_check_mode=True)
module.exit_json(changed=False, changes=[], problems=[])
"""

_STOPS = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in ("docker_host", "containers")},
    supports_check_mode=True)
stopped = [f"container {name}: {why}, stopped" for name, why in module.params["containers"].items()]
module.exit_json(changed=True, changes=stopped)
"""

_WRITES_DOWN = """
import json, os
from ansible.module_utils.basic import AnsibleModule
names = ("root", "state", "instance", "docker_host", "project", "compose_file", "compose", "files",
    "directories", "tidied", "secrets", "reload", "replacement", "transports", "previous",
    "healthy_timeout_seconds", "log_lines")
module = AnsibleModule(argument_spec={name: {"type": "raw", "required": True} for name in names},
    supports_check_mode=True)
with open(os.environ["ASKED_FOR"], "a") as record:
    record.write(json.dumps({**module.params, "check_mode": module.check_mode}) + "\\n")
module.exit_json(changed=True, changes=[f"project {module.params['project']}: brought about"])
"""


_KEEPS_RELEASES = """
import json, os
from ansible.module_utils.basic import AnsibleModule
names = ("root", "state", "project", "docker_host", "content", "files", "back_to")
module = AnsibleModule(argument_spec={name: {"type": "raw"} for name in names}, supports_check_mode=True)
if module.params["content"] is None:
    with open(os.environ["RELEASES"]) as stored:
        module.exit_json(changed=False, changes=[], **json.load(stored))
with open(os.environ["KEPT"], "a") as record:
    record.write(json.dumps({**module.params, "check_mode": module.check_mode}) + "\\n")
module.exit_json(changed=True, changes=["release 1: made"])
"""

NO_RELEASES: dict[str, Any] = {"releases": [], "problems": {}, "deployed": {}}


@dataclass(frozen=True)
class Run:
    """What a run of ansible-playbook printed, and what it asked the box to become, project by project."""

    code: int
    output: str
    asked_for: tuple[dict[str, Any], ...]
    kept: tuple[dict[str, Any], ...] = ()

    def project(self, ending: str) -> dict[str, Any]:
        """The only request for the project with this ending of its name."""
        (found,) = (asked for asked in self.asked_for if asked["project"].endswith(ending))
        return found


class Workshop:
    """A copy of the roles, with a recorded box."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for role in ("vllm_service", "router"):
            shutil.copytree(ROLES / role, folder / "roles" / role)
        for file in [*ROLES.glob("*/meta/argument_specs.yml"), *ROLES.glob("*/defaults/main.yml")]:
            copy = folder / "roles" / file.relative_to(ROLES)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        self._replace("gpu_diag", "library/gpu_diag_box_facts.py", _LOOKS)
        self._replace("vllm_service", "library/vllm_service_converge.py", _WRITES_DOWN)
        self._replace("vllm_service", "library/vllm_service_facts.py", _LOOKS_INTO_FOLDERS)
        self._replace("vllm_service", "library/vllm_service_ask_image.py", _PARSES)
        self._replace("vllm_service", "library/vllm_service_clearance.py", _CLEARS)
        self._replace("vllm_service", "library/vllm_service_stop.py", _STOPS)
        self._replace("vllm_service", "library/vllm_service_releases.py", _KEEPS_RELEASES)
        self.releases = NO_RELEASES
        self._replace("vllm_service", "files/launcher.py", LAUNCHER.decode())

    def _replace(self, role: str, path: str, content: str) -> None:
        file = self.folder / "roles" / role / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")

    def run(self, playbook: Path, inventory: str, box: Any, *arguments: str) -> Run:
        """ansible-playbook with an inventory of the repository on a box; `box` is what is found there."""
        recorded, record = self.folder / "box.json", self.folder / "asked_for.jsonl"
        recorded.write_text(json.dumps(box), encoding="utf-8")
        record.unlink(missing_ok=True)
        releases, kept = self.folder / "releases.json", self.folder / "kept.jsonl"
        releases.write_text(json.dumps(self.releases), encoding="utf-8")
        kept.unlink(missing_ok=True)
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            *("-i", str(REPOSITORY / inventory), str(playbook)),
            *("-e", "ansible_connection=local", "-e", f"ansible_python_interpreter={sys.executable}"),
            *arguments,
        ]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(self.folder / "roles"),
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "RECORDED_BOX": str(recorded),
            "ASKED_FOR": str(record),
            "RELEASES": str(releases),
            "KEPT": str(kept),
        }
        (self.folder / "ansible.cfg").touch()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        return Run(done.returncode, done.stdout + done.stderr, _lines(record), _lines(kept))


def _lines(record: Path) -> tuple[dict[str, Any], ...]:
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return tuple(json.loads(line) for line in lines)
