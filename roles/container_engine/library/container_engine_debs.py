#!/usr/bin/python
"""Install Debian packages out of a folder, or fill such a folder."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.box_tools_docker import last_lines
from ansible.module_utils.box_tools_files import sha256_of
from ansible.module_utils.container_engine_debian import index, minimal_system, named_in

DOCUMENTATION = r"""
module: container_engine_debs
short_description: Install Debian packages out of a folder, or fill such a folder
description:
  - C(installed) installs packages, and what they depend on, out of a folder alone; no other source is asked.
  - C(collected) downloads packages, with all that a minimal system lacks for them, into a folder.
options:
  state:
    description: What to do.
    type: str
    choices: [installed, collected]
    required: true
  folder:
    description: Folder of the packages; their checksums are compared by whoever brought them.
    type: path
    required: true
  names:
    description: Names of packages.
    type: list
    elements: str
    required: true
author: vllm-frontdoor
"""

EXAMPLES = r"""
- name: Install Docker without a network
  container_engine_debs:
    state: installed
    folder: /var/lib/vllm-frontdoor/bundle/packages
    names: [docker.io, iptables]
"""

RETURN = r"""
files:
  description: The packages in the folder.
  returned: when collected
  type: list
  elements: str
"""

_SECONDS = 1800.0
_STATUS = Path("/var/lib/dpkg/status")


class AptError(RuntimeError):
    """A package manager that failed; the text is a sentence for people."""


def apt(what: str, *words: str) -> str:
    """Run apt-get; answers what it printed. Raises AptError, naming `what` failed, with its last lines."""
    environment = {
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    command = ["apt-get", "--yes", "--quiet", "--option", "DPkg::Lock::Timeout=120", *words]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise AptError(f"{what} needs apt-get, which is not on the box.") from None
    except subprocess.TimeoutExpired:
        raise AptError(f"{what} did not end within {_SECONDS:.0f} s.") from None
    if done.returncode != 0:
        raise AptError(f"{what} failed: {last_lines(done.stdout + chr(10) + done.stderr, 6)}")
    return done.stdout


def options(**values: str) -> list[str]:
    """Options of apt-get; a double underscore stands for the colons in a name."""
    return [
        word for name, value in values.items() for word in ("--option", f"{name.replace('__', '::')}={value}")
    ]


def control_of(package: Path) -> str:
    """The control file of a package. Raises AptError."""
    done = subprocess.run(["dpkg-deb", "--field", str(package)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AptError(f"The package {package} can't be read: {done.stderr.strip()}")
    return done.stdout


def installed(name: str) -> bool:
    """Whether a package is installed."""
    command = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "installed"


def install(folder: Path, names: list[str]) -> None:
    """Install out of `folder`, and ask nothing else. Raises AptError."""
    packages = sorted(folder.glob("*.deb"))
    if not packages:
        raise AptError(f"The folder {folder} holds no packages; make the bundle with bundle_packages.")
    with tempfile.TemporaryDirectory(prefix="vllm-frontdoor-") as place:
        work = Path(place)
        (work / "repository").mkdir()
        described = []
        for number, each in enumerate(packages):
            # apt would read the escaped colon of a version with an epoch as a colon.
            name = f"{number}.deb"
            (work / "repository" / name).symlink_to(each)
            described.append((control_of(each), name, each.stat().st_size, sha256_of(each)))
        (work / "repository/Packages").write_text(index(described), encoding="utf-8")
        (work / "lists").mkdir()
        (work / "sources.list").write_text(f"deb [trusted=yes] file:{work}/repository ./\n", encoding="utf-8")
        alone = options(
            Dir__Etc__sourcelist=f"{work}/sources.list",
            Dir__Etc__sourceparts="/dev/null",
            Dir__State__lists=f"{work}/lists",
            Dir__Cache__pkgcache="",
            Dir__Cache__srcpkgcache="",
            APT__Sandbox__User="root",
        )
        apt("Reading the bundle's packages", *alone, "update")
        apt(f"Installing {', '.join(names)}", *alone, "--no-install-recommends", "install", *names)


def collect(folder: Path, names: list[str]) -> list[str]:
    """Download into `folder` what isn't there; answers the names of the files. Raises AptError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".packages-") as place:
        archives, status = Path(place) / "archives", Path(place) / "status"
        (archives / "partial").mkdir(parents=True)
        for package in folder.glob("*.deb"):
            package.replace(archives / package.name)
        status.write_text(minimal_system(_STATUS.read_text(encoding="utf-8")), encoding="utf-8")
        system = options(
            Dir__State__status=str(status),
            Dir__Cache__pkgcache="",
            Dir__Cache__srcpkgcache="",
            APT__Sandbox__User="root",
        )
        asked = [*system, "--no-install-recommends", "install", *names]
        what = f"Downloading {', '.join(names)}"
        apt("Reading the distribution's packages", "update")
        # Against an empty folder all files are named, against the real one only the missing are fetched.
        uris = apt(what, *options(Dir__Cache__archives=f"{place}/"), "--print-uris", *asked)
        apt(what, *options(Dir__Cache__archives=f"{archives}/"), "--download-only", *asked)
        files: list[str] = named_in(uris)
        for name in files:
            (archives / name).replace(folder / name)
    return files


def main() -> None:
    """Install or collect."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["installed", "collected"], "required": True},
            "folder": {"type": "path", "required": True},
            "names": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    folder, names = Path(module.params["folder"]), module.params["names"]
    try:
        if module.params["state"] == "collected":
            before = sorted(path.name for path in folder.glob("*.deb"))
            files = before if module.check_mode else collect(folder, names)
            module.exit_json(changed=files != before, files=files)
        missing = [name for name in names if not installed(name)]
        if missing and not module.check_mode:
            install(folder, missing)
    except (AptError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(missing), files=[])


if __name__ == "__main__":
    main()
