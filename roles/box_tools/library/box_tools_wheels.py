#!/usr/bin/python
"""Fetch the wheels of a lock into a cache on the controller."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_cache import Target, WheelError, fetch, find, writable
from ansible.module_utils.box_tools_lock import LockError, Pin, parse_lock, select

DOCUMENTATION = r"""
module: box_tools_wheels
short_description: Fetch the wheels of a lock into a cache
description:
  - Runs on the controller (C(delegate_to: localhost)) with the pip of the Python that runs Ansible, and with
    the user's own pip settings, proxies and certificates.
  - A wheel that is already in the cache is verified by its SHA-256 and not fetched again.
options:
  lock:
    description: Lock file, or several, on the controller; every requirement pinned and hashed.
    type: list
    elements: path
    default: []
  requirements:
    description: Requirement lines with hashes, instead of a lock file.
    type: list
    elements: str
    default: []
  only:
    description: Names to take from the lock; empty for all.
    type: list
    elements: str
    default: []
  without:
    description: Names to leave out.
    type: list
    elements: str
    default: []
  cache:
    description: Folder of the cache; made when missing, with mode 0755.
    type: path
    required: true
  python:
    description: CPython version that the wheels are for.
    type: str
    default: "3.11"
  machine:
    description: Machine that the wheels are for.
    type: str
    default: x86_64
  glibc_minor:
    description: Minor version of the glibc (2.x) that the wheels have to run with; Debian 12 has 36.
    type: int
    default: 36
  fallback_index:
    description: Index to ask too when pip, as it is set up, can't find a variant such as C(2.13.0+cpu).
    type: str
    default: ""
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Fetch the router's wheels
  box_tools_wheels:
    lock: [locks/router.txt]
    cache: ~/.cache/vllm-frontdoor
  delegate_to: localhost
  become: false
"""

RETURN = r"""
folder:
  description: Folder that holds the wheels, among others.
  returned: always
  type: str
wheels:
  description: For each wheel C(file), C(name), C(version) and C(sha256s), the accepted hashes.
  returned: when all are there
  type: list
  elements: dict
"""


def _pins(lock: list[str], requirements: list[str], only: list[str], without: list[str]) -> list[Pin]:
    pins: list[Pin] = []
    for path in lock:
        try:
            pins += parse_lock(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise LockError(f"The lock {path} can't be read on the controller: {error.strerror}.") from None
    if requirements:
        pins += parse_lock("\n".join(requirements), "given as requirements")
    chosen: list[Pin] = select(pins, only, without)
    return chosen


def main() -> None:
    """Look the wheels up, fetch the missing ones, answer with all."""
    module = AnsibleModule(
        argument_spec={
            "lock": {"type": "list", "elements": "path", "default": []},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "only": {"type": "list", "elements": "str", "default": []},
            "without": {"type": "list", "elements": "str", "default": []},
            "cache": {"type": "path", "required": True},
            "python": {"type": "str", "default": "3.11"},
            "machine": {"type": "str", "default": "x86_64"},
            "glibc_minor": {"type": "int", "default": 36},
            "fallback_index": {"type": "str", "default": ""},
        },
        required_one_of=[("lock", "requirements")],
        supports_check_mode=True,
    )
    asked = module.params
    target = Target(asked["python"], asked["machine"], asked["glibc_minor"])
    folder = Path(asked["cache"]) / "wheels" / target.folder
    try:
        pins = _pins(asked["lock"], asked["requirements"], asked["only"], asked["without"])
        found, missing = find(pins, folder)
        if missing and module.check_mode:
            module.exit_json(
                changed=True, folder=str(folder), wheels=[], msg=f"Would download {len(missing)} wheels."
            )
        if missing and not writable(folder):
            raise WheelError(
                f"The cache of wheels {folder} can't be written; name another folder (…_cache) or correct "
                "its owner."
            )
        if missing:
            fetch(missing, folder, target, asked["fallback_index"])
            found, still_missing = find(pins, folder)
            if still_missing:
                raise WheelError(f"pip ended well but left no wheel for {still_missing[0].line[:120]}.")
    except (LockError, WheelError) as error:
        module.fail_json(msg=str(error))
    wheels = [
        {"file": path.name, "name": pin.name, "version": pin.version, "sha256s": list(pin.hashes)}
        for pin, path in found.items()
    ]
    module.exit_json(
        changed=bool(missing),
        folder=str(folder),
        wheels=wheels,
        msg=f"{len(wheels)} wheels, {len(missing)} of them downloaded now.",
    )


if __name__ == "__main__":
    main()
