#!/usr/bin/python
"""Ansible module: reads the releases of an instance, and keeps a new one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    import frontdoor_releases as releases
    from frontdoor_box import ConvergeError, Docker, deploy_lock, person, write_atomically
else:
    from ansible.module_utils import frontdoor_releases as releases
    from ansible.module_utils.frontdoor_box import (
        ConvergeError,
        Docker,
        deploy_lock,
        person,
        write_atomically,
    )

DOCUMENTATION = r"""
module: vllm_service_releases
short_description: Read the releases of an instance, and keep a new one
version_added: "0.1.0"
description:
  - Without O(content) it reads the releases below O(root), and what the engines run with now.
  - With O(content) it makes a release, unless the newest one deploys the same, keeps the newest five, and
    removes images that only older releases used, as far as no container and no other instance needs them.
  - A release that was altered by hand is not used; it is reported with the reason.
options:
  root:
    description: Folder of the instance on the box.
    type: path
    required: true
  state:
    description: Folder of the instance's state.
    type: path
    required: true
  project:
    description: Name of the engines' Compose project.
    type: str
    required: true
  docker_host:
    description: Address of the Docker daemon.
    type: str
    default: unix:///var/run/docker.sock
  content:
    description: C(variables), C(images) and C(services) of the release to be made.
    type: dict
  files:
    description: What was rendered, by path below O(root).
    type: dict
    default: {}
  back_to:
    description: Number of the release that the new one goes back to.
    type: int
attributes:
  check_mode:
    description: Says in the same words what a run would make.
    support: full
author:
  - vllm-frontdoor
"""

EXAMPLES = r"""
- name: Read the releases
  vllm_service_releases:
    root: /opt/vllm-frontdoor/default
    state: /var/lib/vllm-frontdoor/default
    project: vllm-frontdoor-default-engines
"""

RETURN = r"""
releases:
  description: The releases that can be used, oldest first, as they lie on the box.
  returned: without O(content)
  type: list
  elements: dict
problems:
  description: Why releases can't be used, by number.
  returned: without O(content)
  type: dict
deployed:
  description: The definitions that the engines run with, by service.
  returned: without O(content)
  type: dict
changes:
  description: What was made and removed, a sentence each.
  returned: always
  type: list
  elements: str
  sample: ["release 3: made"]
"""

FOLDER_MODE = 0o700
FILE_MODE = 0o600


class Store:
    """The folder of releases of one instance."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "releases"

    def numbers(self) -> list[int]:
        """Numbers of all releases that are there, usable or not, in order."""
        names = [path.name for path in self.folder.glob("*") if path.is_dir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self) -> tuple[dict[int, releases.Release], dict[int, str]]:
        """The releases that can be used, and why others can't, by number."""
        intact: dict[int, releases.Release] = {}
        problems: dict[int, str] = {}
        for number in self.numbers():
            try:
                intact[number] = self._read_one(number)
            except releases.ReleaseError as error:
                problems[number] = str(error)
        return intact, problems

    def _read_one(self, number: int) -> releases.Release:
        folder = self.folder / str(number)
        try:
            release = releases.from_document(json.loads((folder / "release.json").read_bytes()))
        except (OSError, ValueError) as error:
            raise releases.ReleaseError(f"its file {folder}/release.json can't be read") from error
        if release.number != number:
            raise releases.ReleaseError(f"it says that it is release {release.number}")
        kept = folder / "files"
        found = {
            str(path.relative_to(kept)): releases.sha256(path.read_bytes())
            for path in kept.rglob("*")
            if path.is_file()
        }
        if altered := releases.altered_files(release, found):
            raise releases.ReleaseError(f"its files were altered by hand ({', '.join(altered)})")
        return release

    def write(self, release: releases.Release, files: Mapping[str, str]) -> None:
        """Keep a release: its files first, so that one with a document is whole."""
        folder = self.folder / str(release.number)
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        self.folder.chmod(FOLDER_MODE)
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in files.items():
            write_atomically(folder / "files" / path, text.encode(), FILE_MODE, os.geteuid(), os.getegid())
        document = json.dumps(releases.to_document(release), indent=1, sort_keys=True).encode() + b"\n"
        write_atomically(folder / "release.json", document, FILE_MODE, os.geteuid(), os.getegid())

    def remove(self, number: int) -> None:
        shutil.rmtree(self.folder / str(number))


def deployed_definitions(state: Path, project: str) -> dict[str, str]:
    """What the engines run with by the record of their project; nothing where there is none."""
    try:
        document = json.loads((state / "deployed" / f"{project}.json").read_bytes())
        return {name: str(entry["definition"]) for name, entry in document["services"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a run that only reads."""
    intact, problems = Store(Path(parameters["root"])).read()
    return {
        "changed": False,
        "changes": [],
        "releases": [releases.to_document(intact[number]) for number in sorted(intact)],
        "problems": {str(number): words for number, words in problems.items()},
        "deployed": deployed_definitions(Path(parameters["state"]), parameters["project"]),
    }


def keep(parameters: Mapping[str, Any], *, check_mode: bool) -> dict[str, Any]:
    """The result of a run that makes a release where the newest one differs."""
    store = Store(Path(parameters["root"]))
    files = {path: str(text) for path, text in parameters["files"].items()}
    given = parameters["content"]
    content = releases.Content(
        variables=given["variables"],
        images=given["images"],
        services=given["services"],
        files={path: releases.sha256(text.encode()) for path, text in files.items()},
    )
    intact, _ = store.read()
    numbers = store.numbers()
    newest = intact.get(max(numbers, default=0))
    if newest is not None and releases.is_same(newest.content, content):
        return {"changed": False, "changes": []}
    release = releases.Release(
        number=releases.next_number(numbers),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=person(),
        content=content,
        back_to=parameters["back_to"],
    )
    leaving = releases.surplus([*numbers, release.number])
    changes = [f"release {release.number}: made", *(f"release {one}: removed, too old" for one in leaving)]
    if not check_mode:
        store.write(release, files)
        for number in leaving:
            store.remove(number)
        gone = [intact[number] for number in leaving if number in intact]
        changes += remove_images(Docker(parameters["docker_host"]), gone, everyones_releases(store))
    return {"changed": True, "changes": changes}


def everyones_releases(store: Store) -> list[releases.Release]:
    """The usable releases of all instances of the machine, since they share its images."""
    instances = store.folder.parent.parent.glob("*")
    return [release for root in instances for release in Store(root).read()[0].values()]


def remove_images(docker: Docker, gone: list[releases.Release], staying: list[releases.Release]) -> list[str]:
    """Take the names off images that nobody goes back to any more; Docker keeps what is in use."""
    changes = []
    for image in releases.superseded_images(gone, staying):
        documents = docker.inspect("image", [image])
        names = (documents[0].get("RepoTags") or documents[0].get("RepoDigests") or []) if documents else []
        for name in names:
            if docker.run("image", "rm", name).returncode == 0:
                changes.append(f"image {name}: removed, no release that is kept uses it")
    return changes


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "state": {"type": "path", "required": True},
            "project": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "content": {"type": "dict"},
            "files": {"type": "dict", "default": {}},
            "back_to": {"type": "int"},
        },
        supports_check_mode=True,
    )
    try:
        if module.params["content"] is None:
            module.exit_json(**read(module.params))
        with deploy_lock(Path(module.params["root"]), check_mode=module.check_mode):
            module.exit_json(**keep(module.params, check_mode=module.check_mode))
    except (ConvergeError, OSError) as error:
        module.fail_json(msg=f"The releases can't be kept: {error}", changed=False, changes=[])


if __name__ == "__main__":
    main()
