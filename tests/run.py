"""The checks, stage by stage: `./box test [STAGE]`.

Docker tests get a daemon of their own (data root and socket), so that images and containers already on the
machine can neither make them pass nor be harmed by them. It is started by the role container_engine and
stopped at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKER_HOST = "unix:///run/vllm-frontdoor-test/docker.sock"

REAL_VERSIONS = ("0.27.1", "0.32.0")
"""Those whose contracts differ: with empty answers, and with JSON."""

LONG_E2E = tuple(
    f"tests/e2e/test_{name}.py" for name in ("daemon_restart", "deployment", "tensor_parallel", "upgrade")
)
REHEARSAL = Path("/opt/vllm-frontdoor/rehearsal")
COLLECTIONS = REPOSITORY / ".cache" / "collections"
# community.docker connects molecule to its machines; ansible.posix and the other are what it needs.
NEEDED_COLLECTIONS = ("ansible/posix", "community/docker", "community/library_inventory_filtering_v1")


class CheckError(Exception):
    """A check that ended with a non-zero exit status."""


def run(*command: str | Path, **variables: str) -> None:
    """Run one command in the repository with its output shown; raises CheckError."""
    words = [str(word) for word in command]
    shown = textwrap.shorten(" ".join(words), 200, placeholder=" …")
    print(f"+ {shown}", flush=True)
    result = subprocess.run(words, cwd=REPOSITORY, env={**os.environ, **variables}, check=False)
    if result.returncode:
        raise CheckError(f"'{shown}' ended with status {result.returncode}")


def python_files() -> list[str]:
    """Every Python file that git tracks."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listing.split("\0") if name]


def prepare_collections() -> None:
    """Unpack the few collections that the checks need from the locked `ansible` wheel."""
    lock = REPOSITORY / "locks" / "collections.txt"
    stamp = COLLECTIONS / "installed"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    shutil.rmtree(COLLECTIONS, ignore_errors=True)
    wheels = COLLECTIONS / "wheels"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    run(*pip, "--require-hashes", "--only-binary", ":all:", "--dest", wheels, "-r", lock)
    patterns = [f"ansible_collections/{name}/*" for name in NEEDED_COLLECTIONS]
    (wheel,) = wheels.glob("ansible-*.whl")
    unpack = "import fnmatch, sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); z.extractall(sys.argv[2], "
    unpack += "[n for n in z.namelist() if any(fnmatch.fnmatch(n, p) for p in sys.argv[3:])])"
    run(sys.executable, "-c", unpack, wheel, COLLECTIONS, *patterns)
    shutil.rmtree(wheels)
    stamp.write_bytes(lock.read_bytes())


SIDE_BY_SIDE = ("--numprocesses", "2", "--dist", "loadfile")
"""For tests that mostly wait; those of one file share what they start."""


def lint() -> None:
    """Style and types of everything."""
    prepare_collections()
    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")
    run("mypy", *python_files())
    run("yamllint", "--strict", ".")
    # It checks playbooks without an inventory, which in a run is an error (ansible.cfg).
    run("ansible-lint", ANSIBLE_HOST_PATTERN_MISMATCH="warning")


def unit() -> None:
    """Fast tests: no Docker, no network beyond the loopback."""
    run(sys.executable, "-m", "pytest", *SIDE_BY_SIDE)


def gate() -> None:
    """The plan through ansible-playbook, and every way around it."""
    run(sys.executable, "-m", "pytest", *SIDE_BY_SIDE, "tests/gate")


def contract() -> None:
    """The router against the stand-in engine, in the dialects of two vLLM versions, and against bad input."""
    run(sys.executable, "-m", "pytest", *SIDE_BY_SIDE, "tests/contract", "tests/fuzz")


def operating() -> None:
    """vllmctl, the status page in Chromium, rules and dashboard in Prometheus, the docs' commands."""
    run("ansible-playbook", "-i", "localhost,", "tests/operating.yml")
    run(sys.executable, "-m", "pytest", *SIDE_BY_SIDE, "tests/operating")


def e2e() -> None:
    """The rehearsal box: real engines, real clients, from a clean copy of this repository."""
    run(sys.executable, "-m", "pytest", "tests/e2e", *(f"--ignore={path}" for path in LONG_E2E))


def e2e_long() -> None:
    """The rehearsal box is changed while clients ask: a service, vLLM, a model split in two, the daemon."""
    run(sys.executable, "-m", "pytest", *LONG_E2E)


def docker() -> None:
    """Modules and images against a real Docker daemon."""
    run("ansible-playbook", "-i", "inventory/rehearsal", "tests/images.yml")
    run(sys.executable, "-m", "pytest", "--exitfirst", "tests/docker")


def real() -> None:
    """The contract suite's common part on two versions of vLLM, and on one what only real engines prove."""
    for version in REAL_VERSIONS:
        beside = "tests/real" if version == REAL_VERSIONS[0] else "tests/real/test_common_part.py"
        images = ("ansible-playbook", "-i", "inventory/rehearsal", "tests/images.yml")
        run(*images, "-e", f"engine_image_vllm_version={version}")
        suite = (sys.executable, "-m", "pytest", "-p", "tests.real.plugin", "tests/contract", beside)
        run(*suite, "--engine-image", f"vllm-frontdoor/engine-cpu:{version}")


def airgapped() -> None:
    """A box installed from a bundle, in a network from which no route leads anywhere."""
    run(sys.executable, "-m", "pytest", "tests/airgapped")


def removal() -> None:
    """Purging the rehearsal leaves nothing of it behind."""
    run(sys.executable, "-m", "pytest", "tests/removal")


def molecule() -> None:
    """The roles on machines of their own."""
    prepare_collections()
    run("molecule", "test", "--all", "--report")


@contextmanager
def docker_daemon() -> Iterator[None]:
    """A Docker daemon for the tests alone; what they leave on it and beside it goes with it.

    Raises CheckError where a rehearsal is on the machine: the tests would take its folders away.
    """
    if REHEARSAL.exists():
        raise CheckError(
            f"{REHEARSAL} belongs to a rehearsal, which the tests would remove: ./box rehearse --purge"
        )
    try:
        run("ansible-playbook", "-i", "localhost,", "tests/daemon.yml", "-e", "daemon_state=started")
        yield
    finally:
        try:
            run("./box", "rehearse", "--purge")
        finally:
            run("ansible-playbook", "-i", "localhost,", "tests/daemon.yml", "-e", "daemon_state=absent")


STAGES: dict[str, Callable[[], None]] = {
    "lint": lint,
    "unit": unit,
    "gate": gate,
    "contract": contract,
    "operating": operating,
    "e2e": e2e,
    "docker": docker,
    "e2e-long": e2e_long,
    "real": real,
    "airgapped": airgapped,
    "molecule": molecule,
    "removal": removal,
}
ON_ORDER = ("e2e-long", "real", "airgapped")
"""Run only when asked for by name: together they take longer than all the others."""
NEED_DOCKER = ("e2e", "docker", "e2e-long", "real", "airgapped", "molecule", "removal")


def run_stages(names: list[str]) -> None:
    """Run stages one after the other and say how long each took; raises CheckError at the first failure."""
    for name in names:
        start = time.monotonic()
        print(f"=== {name}: {STAGES[name].__doc__}", flush=True)
        try:
            STAGES[name]()
        except CheckError as failure:
            raise CheckError(f"the stage {name} failed: {failure}") from failure
        print(f"=== {name} passed in {time.monotonic() - start:.0f} s", flush=True)


def main() -> int:
    """Run the stages asked for, the quick ones first; the first failure ends the run."""
    parser = argparse.ArgumentParser(
        prog="./box test", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"some of: {', '.join(STAGES)}")
    chosen = parser.parse_args().stages or [name for name in STAGES if name not in ON_ORDER]
    unknown = sorted(set(chosen) - set(STAGES))
    if unknown:
        parser.error(f"there is no stage '{unknown[0]}'; the stages are {', '.join(STAGES)}")
    os.environ.update(
        DOCKER_HOST=DOCKER_HOST,
        ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg"),
        ANSIBLE_FORCE_COLOR="0",
        PYTHONUNBUFFERED="1",
    )
    try:
        run_stages([name for name in chosen if name not in NEED_DOCKER])
        if with_docker := [name for name in chosen if name in NEED_DOCKER]:
            with docker_daemon():
                run_stages(with_docker)
    except CheckError as failure:
        print(f"=== {failure}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
