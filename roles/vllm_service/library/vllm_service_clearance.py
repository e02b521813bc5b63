#!/usr/bin/python
"""Install what clears engines at each boot, and clear them for this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: vllm_service_clearance
short_description: Clear engines for this boot, and have them cleared at each boot
description:
  - Engines wait for a word that this boot's hardware was tested. This module writes it from evidence of this
    boot (and tests what is missing, for at most 60 seconds), and where systemd runs installs a unit that
    does the same at each boot. Where no systemd runs, a playbook has to be run after a boot.
options:
  folder:
    description: Absolute folder of the program and its configuration.
    type: path
    required: true
  script:
    description: The program.
    type: str
    required: true
  config:
    description: >-
      Its configuration: C(instance), C(docker_host), C(image) (an id), C(package), C(evidence), C(output),
      C(boot_id_file), C(cpu_devices) and C(control).
    type: dict
    required: true
  unit:
    description: Name of the unit, without C(.service).
    type: str
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Clear the engines
  vllm_service_clearance:
    folder: /opt/vllm-frontdoor/default/clearance
    script: "{{ lookup('ansible.builtin.file', 'clearance.py') }}"
    unit: vllm-frontdoor-default-clearance
    config: {instance: default}
"""

RETURN = r"""
changes:
  description: A sentence for each thing that was (in check mode, would be) changed.
  returned: always
  type: list
  elements: str
problems:
  description: What is not cleared.
  returned: always
  type: list
  elements: str
"""

UNITS = Path("/etc/systemd/system")
RUN_SYSTEMD = Path("/run/systemd/system")
LIMIT_SECONDS = 60
SYSTEMCTL_SECONDS = 60
MARGIN_SECONDS = 60
NOT_CLEARED = 1


def unit_text(folder: str, python: str) -> str:
    """The unit: after Docker, at each boot; tried again while something is not cleared."""
    return f"""[Unit]
Description=Tests the hardware for the engines of vllm-frontdoor after each boot
Wants=docker.service
After=docker.service nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={python} {folder}/clearance.py --config {folder}/config.json --limit {LIMIT_SECONDS}
Restart=on-failure
RestartSec=30
TimeoutStartSec={LIMIT_SECONDS + MARGIN_SECONDS}

[Install]
WantedBy=multi-user.target
"""


def files(parameters: dict[str, Any]) -> dict[Path, str]:
    """What has to lie on the box."""
    folder = Path(parameters["folder"])
    found = {
        folder / "clearance.py": parameters["script"],
        folder / "config.json": json.dumps(parameters["config"], indent=1, sort_keys=True) + "\n",
    }
    if RUN_SYSTEMD.is_dir():
        found[UNITS / f"{parameters['unit']}.service"] = unit_text(parameters["folder"], sys.executable)
    return found


def differs(path: Path, content: str) -> bool:
    """Whether a file has another content, or isn't there."""
    try:
        return path.read_text(encoding="utf-8") != content
    except (OSError, UnicodeDecodeError):
        return True


def cleared(config: dict[str, Any]) -> bool:
    """Whether this boot is cleared already, with nothing refused."""
    try:
        document = json.loads(Path(config["output"]).read_text(encoding="utf-8"))
        boot_id = Path(config["boot_id_file"]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return False
    if not isinstance(document, dict) or document.get("boot_id") != boot_id:
        return False
    return document.get("refused") == {} and document.get("control") is None


def enable(unit: str) -> str | None:
    """Have systemd start the unit at each boot; a sentence where it can't."""
    for arguments in (["daemon-reload"], ["enable", f"{unit}.service"]):
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS, check=False
        )
        if done.returncode:
            return f"the unit {unit}.service can't be enabled: {done.stderr.strip()}"
    return None


def main() -> None:
    """Write what differs, then clear."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "script": {"type": "str", "required": True},
            "config": {"type": "dict", "required": True},
            "unit": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    wanted = files(module.params)
    pending = [path for path, content in wanted.items() if differs(path, content)]
    changes = [
        f"file {path}: {'content differs, rewritten' if path.exists() else 'missing, written'}"
        for path in pending
    ]
    config = module.params["config"]
    needs_word = bool(pending) or not cleared(config)
    if needs_word and not cleared(config):
        changes.append("clearance of this boot: not there, given")
    if module.check_mode or not needs_word:
        module.exit_json(changed=bool(changes), changes=changes, problems=[])
    try:
        for path in pending:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        Path(config["output"]).parent.mkdir(parents=True, exist_ok=True)
        problem = enable(module.params["unit"]) if any(path.parent == UNITS for path in pending) else None
    except OSError as error:
        module.fail_json(msg=f"The clearance can't be installed ({error.strerror}: {error.filename}).")
    if problem:
        module.fail_json(msg=problem)
    folder = Path(module.params["folder"])
    command = [sys.executable, str(folder / "clearance.py"), "--config", str(folder / "config.json")]
    try:
        done = subprocess.run(
            [*command, "--limit", str(LIMIT_SECONDS)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS + MARGIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        module.fail_json(msg=f"The clearance did not end within {LIMIT_SECONDS + MARGIN_SECONDS} s.")
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode not in (0, NOT_CLEARED):
        module.fail_json(msg=f"The engines can't be cleared for this boot: {' '.join(said)[-600:]}")
    module.exit_json(changed=bool(changes), changes=changes, problems=said if done.returncode else [])


if __name__ == "__main__":
    main()
