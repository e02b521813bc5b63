"""Discover a box: kernel, firmware, GPUs, Docker, ports, paths, evidence. All waiting is bounded.

Works where there is no Docker and no NVIDIA driver, and without root: what can't be known is null, and
``problems`` holds a sentence for each thing that was asked and did not answer.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .gpu_diag_commands import Outcome, bounded, bounded_all, run_bounded
from .gpu_diag_evidence_files import KINDS, SUSPECT_FOLDER, documents, model_of, newest_of_each
from .gpu_diag_parsers import (
    Listener,
    at,
    count_types,
    parse_acs_redirect,
    parse_compose_version,
    parse_container,
    parse_container_id,
    parse_driver_proc_version,
    parse_image,
    parse_json_objects,
    parse_listeners,
    parse_memory_total,
    parse_network,
    parse_nvidia_smi,
    parse_routes,
    parse_socket_link,
    published_ports,
)
from .gpu_diag_weights_state import TooManyFilesError, file_states, why_not_current

Json = dict[str, object]

SCHEMA_VERSION = 1
INSTANCE_LABEL = "vllm-frontdoor.instance"
# nvidia-smi without persistence mode initialises each GPU first: seconds per GPU.
_NVIDIA_SMI_SECONDS = 45.0
_DOCKER_SECONDS = 15.0
_FILE_SYSTEM_SECONDS = 10.0


@dataclass(frozen=True)
class Question:
    """What to find out beyond the host itself. ``root`` and ``nvidia_smi`` are other values in tests only."""

    docker_host: str = ""
    images: Sequence[str] = ()
    paths: Sequence[str] = ()
    ports: Sequence[int] = ()
    evidence: str = ""
    instance: str = ""
    root: str = "/"
    nvidia_smi: Sequence[str] = ("nvidia-smi",)
    docker: Sequence[str] = ("docker",)


@dataclass
class _Findings:
    problems: list[str] = field(default_factory=list)

    def note(self, outcome: Outcome) -> str:
        if outcome.problem is not None:
            self.problems.append(outcome.problem)
        return outcome.stdout


def discover(question: Question) -> Json:
    """The box, as the dictionary that the module ``gpu_diag_box_facts`` returns."""
    findings = _Findings()
    with ThreadPoolExecutor(max_workers=4) as pool:
        gpu_part = pool.submit(_gpus, question, findings)
        docker_part = pool.submit(_docker, question, findings)
        files_part = pool.submit(_paths, question, findings)
        box = {"schema_version": SCHEMA_VERSION, **_host(Path(question.root)), **gpu_part.result()}
        docker = docker_part.result()
        box.update(files_part.result())
    inspected = docker.pop("inspected")
    box.update(docker)
    box["ports"] = _ports(question, inspected if isinstance(inspected, list) else [])
    box["acs_redirect"] = _acs_redirect(Path(question.root), _addresses(box["gpus"]))
    box.update(_evidence(question, findings))
    box["problems"] = findings.problems
    return box


def _addresses(gpus: object) -> list[str]:
    found = [at(gpu, "pci_address") for gpu in gpus] if isinstance(gpus, list) else []
    return [address for address in found if isinstance(address, str)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _host(root: Path) -> Json:
    groups = root / "sys/kernel/iommu_groups"
    types = (_read(path) for path in groups.glob("*/type")) if groups.is_dir() else ()
    return {
        "boot_id": _read(root / "proc/sys/kernel/random/boot_id"),
        "kernel": platform.release(),
        "kernel_command_line": _read(root / "proc/cmdline"),
        "hostname": socket.gethostname(),
        "cpu_count": os.cpu_count(),
        "memory_bytes": parse_memory_total(_read(root / "proc/meminfo") or ""),
        "bios_version": _read(root / "sys/class/dmi/id/bios_version") or None,
        "iommu_group_types": count_types(name for name in types if name),
        "routes": parse_routes(_read(root / "proc/net/route") or ""),
    }


def _gpus(question: Question, findings: _Findings) -> Json:
    outcome = run_bounded([*question.nvidia_smi, "-q", "-x"], _NVIDIA_SMI_SECONDS)
    parsed = parse_nvidia_smi(outcome.stdout) if outcome.problem is None else None
    if parsed is not None:
        return parsed
    if outcome.problem is None:
        findings.problems.append("nvidia-smi answered something that is not its XML: the GPUs are unknown")
    elif outcome.problem != f"{question.nvidia_smi[0]} is not installed":
        findings.note(outcome)
    version = parse_driver_proc_version(_read(Path(question.root) / "proc/driver/nvidia/version") or "")
    return {"driver": {"version": version, "cuda": None} if version else None, "gpus": []}


def _acs_redirect(root: Path, addresses: Iterable[str]) -> Json:
    """For each port above a GPU its redirecting ACS bits (null where unreadable), by PCI address."""
    ports: Json = {}
    for address in addresses:
        device = Path(os.path.realpath(root / "sys/bus/pci/devices" / address))
        for port in device.parents:
            if (port / "config").is_file():
                config = bounded((port / "config").read_bytes, _FILE_SYSTEM_SECONDS)
                ports[port.name] = parse_acs_redirect(config) if config else None
    return ports


def _docker(question: Question, findings: _Findings) -> Json:
    base = [*question.docker, *(["--host", question.docker_host] if question.docker_host else [])]
    version = run_bounded([*base, "version", "--format", "{{json .}}"], _DOCKER_SECONDS)
    compose = run_bounded([*base, "compose", "version", "--short"], _DOCKER_SECONDS)
    server = at(next(iter(parse_json_objects(version.stdout)), {}), "Server", "Version")
    reachable = version.problem is None and isinstance(server, str)
    error = None if reachable else version.problem or "the Docker daemon did not name its version"
    facts: Json = {
        "docker": {
            "reachable": reachable,
            "version": server if reachable else None,
            "compose": parse_compose_version(compose.stdout) if compose.problem is None else None,
            "error": error,
        },
        "images": dict.fromkeys(question.images),
        "containers": [],
        "networks": [],
        "inspected": [],
    }
    if reachable:
        facts.update(_docker_objects(base, question, findings))
    return facts


def _docker_objects(base: list[str], question: Question, findings: _Findings) -> Json:
    def ask(*arguments: str) -> str:
        return findings.note(run_bounded([*base, *arguments], _DOCKER_SECONDS))

    def inspect(kind: str, names: list[str]) -> list[Json]:
        if not names:
            return []
        # An object that was removed since the listing makes the command fail and the others still come out.
        return parse_json_objects(run_bounded([*base, kind, "inspect", *names], _DOCKER_SECONDS).stdout)

    containers = inspect("container", ask("container", "ls", "--all", "--quiet", "--no-trunc").split())
    networks = inspect("network", ask("network", "ls", "--quiet", "--no-trunc").split())
    parsed = [parse_container(container) for container in containers]
    return {
        "images": {name: _image(inspect("image", [name])) for name in question.images},
        "containers": [c for c in parsed if at(c, "labels", INSTANCE_LABEL) == question.instance],
        "networks": [parse_network(network) for network in networks],
        "inspected": containers,
    }


def _image(inspected: list[Json]) -> Json | None:
    return parse_image(inspected[0]) if inspected else None


def _paths(question: Question, findings: _Findings) -> Json:
    answers = bounded_all([partial(_path, Path(name)) for name in question.paths], _FILE_SYSTEM_SECONDS)
    facts: Json = {}
    for name, answer in zip(question.paths, answers, strict=True):
        if answer is None:
            findings.problems.append(
                f"{name} can't be looked at (no permission, or its file system did not answer within "
                f"{_FILE_SYSTEM_SECONDS:g} s)"
            )
        facts[name] = answer or {"exists": False, "is_directory": False, "entries": 0}
    return {"paths": facts}


def _path(path: Path) -> Json:
    is_directory = path.is_dir()
    return {
        "exists": path.exists(),
        "is_directory": is_directory,
        "entries": sum(1 for _ in path.iterdir()) if is_directory else 0,
    }


def _ports(question: Question, containers: list[Json]) -> Json:
    if not question.ports:
        return {}
    root = Path(question.root)
    texts = [_read(root / "proc/net" / name) or "" for name in ("tcp", "tcp6")]
    wanted = set(question.ports)
    listeners = [entry for text in texts for entry in parse_listeners(text) if entry.port in wanted]
    owners = _socket_owners(root, {listener.inode for listener in listeners}) if listeners else {}
    return {str(port): _port(root, port, listeners, owners, containers) for port in question.ports}


def _port(
    root: Path, port: int, listeners: list[Listener], owners: dict[int, int], containers: list[Json]
) -> Json | None:
    publisher = next((_name(c) for c in containers if port in published_ports(c)), None)
    mine = [listener for listener in listeners if listener.port == port]
    if not mine and publisher is None:
        return None
    pid = next((owners[listener.inode] for listener in mine if listener.inode in owners), None)
    process = _read(root / "proc" / str(pid) / "comm") if pid is not None else None
    return {"process": process, "pid": pid, "container": publisher or _container_of(root, pid, containers)}


def _container_of(root: Path, pid: int | None, containers: list[Json]) -> str | None:
    if pid is None:
        return None
    identifier = parse_container_id(_read(root / "proc" / str(pid) / "cgroup") or "")
    matches = (c for c in containers if identifier is not None and c.get("Id") == identifier)
    found = next(matches, None) or next((c for c in containers if at(c, "State", "Pid") == pid), None)
    return _name(found) if found is not None else None


def _name(container: Json) -> str:
    return str(parse_container(container)["name"])


def _socket_owners(root: Path, inodes: set[int]) -> dict[int, int]:
    """Process ids by socket inode; without root only those of one's own processes."""
    owners: dict[int, int] = {}
    for process in (root / "proc").glob("[0-9]*"):
        for inode in _sockets_of(process) & inodes:
            owners.setdefault(inode, int(process.name))
        if len(owners) == len(inodes):
            break
    return owners


def _sockets_of(process: Path) -> set[int]:
    inodes = set()
    try:
        for link in (process / "fd").iterdir():
            inode = parse_socket_link(str(link.readlink()))
            if inode is not None:
                inodes.add(inode)
    except OSError:
        return inodes  # the process ended, or it belongs to someone else
    return inodes


def _evidence(question: Question, findings: _Findings) -> Json:
    if not question.evidence:
        return {"evidence": {kind: [] for kind in KINDS}, "weights": {}, "suspicions": []}
    found = bounded(partial(_documents, question.evidence, findings.problems), _FILE_SYSTEM_SECONDS)
    if found is None:
        findings.problems.append(f"the evidence in {question.evidence} can't be read")
        found = {kind: [] for kind in KINDS}
    marks = found.pop(SUSPECT_FOLDER, [])
    weights = dict(_weights_states(found["weights"]))
    return {"evidence": found, "weights": weights, "suspicions": marks}


def _documents(evidence: str, problems: list[str]) -> dict[str, list[Json]]:
    found = {kind: documents(evidence, kind, problems) for kind in (*KINDS, SUSPECT_FOLDER)}
    found["weights"] = newest_of_each(found["weights"], model_of)
    return found


def _weights_states(found: list[Json]) -> Iterable[tuple[str, Json]]:
    """By model folder: verdict, class and whether the files are still those that were probed."""
    folders = [str(model_of(document)) for document in found]
    calls = [partial(_reasons, folder, document) for folder, document in zip(folders, found, strict=True)]
    answers = bounded_all(calls, _FILE_SYSTEM_SECONDS)
    for folder, document, reasons in zip(folders, found, answers, strict=True):
        known = [f"{folder} can't be read"] if reasons is None else reasons
        yield (
            folder,
            {
                "verdict": document.get("verdict"),
                "class": document.get("class"),
                "current": not known,
                "reasons": known,
            },
        )


def _reasons(folder: str, document: Json) -> list[str]:
    try:
        return why_not_current(document, file_states(folder))
    except TooManyFilesError as error:
        return [str(error)]
