"""Turns the box facts (JSON from the target) into `Discovered` and weight evidence.

The facts come from our own module, so a shape that doesn't fit is a fault of ours or of a version mix,
and is told as such instead of being guessed around.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from .calibration import Calibration, CalibrationError, parse_calibration
from .evidence import Evidence, damaged_from_box, marks_from_box, probes_from_box
from .model import (
    Discovered,
    Docker,
    DockerNetwork,
    Gpu,
    Image,
    ModelFacts,
    PathFacts,
    PortUser,
    Route,
    WeightEvidence,
)

SCHEMA_VERSION = 1
_MACHINE_IDENTITY = (
    "boot_id", "kernel", "kernel_command_line", "driver", "bios_version", "iommu_group_types", "acs_redirect",
)  # fmt: skip
_GPU_IDENTITY = ("uuid", "serial", "pci_address", "vbios")


class UnreadableFactsError(ValueError):
    """The facts of the box do not have the shape that this version reads."""


def discovered_from_box(box: Mapping[str, Any], *, is_root: bool) -> Discovered:
    """The box as the plan sees it. Raises UnreadableFactsError."""
    try:
        return _discovered(box, is_root)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UnreadableFactsError(
            f"The facts of the box can't be read ({type(problem).__name__}: {problem}). "
            "The roles gpu_diag and vllm_service of this checkout don't belong together; "
            "take both from the same version."
        ) from problem


def _discovered(box: Mapping[str, Any], is_root: bool) -> Discovered:
    if box["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {box['schema_version']!r} instead of {SCHEMA_VERSION}")
    return Discovered(
        cpu_count=int(box["cpu_count"]),
        memory_bytes=int(box["memory_bytes"]),
        docker=Docker(reachable=bool(box["docker"]["reachable"]), error=box["docker"].get("error")),
        gpus=tuple(sorted((_gpu(gpu) for gpu in box["gpus"]), key=lambda gpu: gpu.index)),
        images={reference: _image(reference, found) for reference, found in box["images"].items()},
        paths={path: _path(found) for path, found in box["paths"].items()},
        ports={int(port): _port(user) for port, user in box["ports"].items()},
        routes=tuple(_routes(box["routes"])),
        networks=tuple(_network(network) for network in box["networks"]),
        containers=tuple(str(container["name"]) for container in box["containers"]),
        models={path: _model(found) for path, found in (box.get("models") or {}).items()},
        identity=identity_of(box),
        is_root=is_root,
    )


def identity_of(box: Mapping[str, Any]) -> dict[str, Any]:
    """The machine in its present boot, in the form that evidence records it."""
    gpus = [{key: gpu.get(key) for key in _GPU_IDENTITY} for gpu in box.get("gpus") or ()]
    return {**{key: box.get(key) for key in _MACHINE_IDENTITY}, "gpus": gpus}


def _gpu(gpu: Mapping[str, Any]) -> Gpu:
    return Gpu(
        index=int(gpu["index"]),
        uuid=str(gpu["uuid"]),
        pci_address=str(gpu["pci_address"]),
        name=str(gpu["name"]),
        memory_bytes=int(gpu["memory_bytes"]),
    )


def _image(reference: str, found: Mapping[str, Any] | None) -> Image | None:
    if found is None:
        return None
    return Image(reference=reference, id=str(found["id"]), labels=dict(found.get("labels") or {}))


def _path(found: Mapping[str, Any]) -> PathFacts:
    return PathFacts(
        exists=bool(found["exists"]),
        is_directory=bool(found["is_directory"]),
        entries=int(found["entries"] or 0),
    )


def _model(found: Mapping[str, Any]) -> ModelFacts:
    heads, context, problem = found["attention_heads"], found["context_tokens"], found["problem"]
    return ModelFacts(
        config=bool(found["config"]),
        attention_heads=None if heads is None else int(heads),
        context_tokens=None if context is None else int(context),
        weights_bytes=int(found["weights_bytes"]),
        problem=None if problem is None else str(problem),
    )


def _port(user: Mapping[str, Any] | None) -> PortUser | None:
    if user is None:
        return None
    return PortUser(
        process=str(user.get("process") or "a process that could not be identified"),
        pid=user.get("pid"),
        container=user.get("container"),
    )


def _ipv4(text: str) -> ipaddress.IPv4Network | None:
    """The network, or None for IPv6, which can't overlap with the pool of an instance."""
    network = ipaddress.ip_network(text, strict=False)
    return network if isinstance(network, ipaddress.IPv4Network) else None


def _routes(routes: list[Mapping[str, Any]]) -> list[Route]:
    found = ((_ipv4(route["network"]), str(route["interface"])) for route in routes)
    return [Route(network, interface) for network, interface in found if network is not None]


def _network(network: Mapping[str, Any]) -> DockerNetwork:
    subnets = (_ipv4(subnet) for subnet in network["subnets"] or [])
    return DockerNetwork(
        name=str(network["name"]),
        subnets=tuple(subnet for subnet in subnets if subnet is not None),
        labels=dict(network.get("labels") or {}),
    )


def evidence_from_box(box: Mapping[str, Any]) -> Evidence:
    """All evidence that lies on the box. What can't be read is named in it, and nothing of it is trusted."""
    calibration, problems = _calibration(box.get("calibration"))
    return Evidence(
        weights=weight_evidence_from_box(box),
        probes=probes_from_box(box, identity_of(box)),
        marks=marks_from_box(box),
        damaged=damaged_from_box(box),
        calibration=calibration,
        calibration_problems=tuple(problems),
    )


def _calibration(found: Any) -> tuple[dict[str, Calibration], list[tuple[str, str]]]:
    """Figures by service, from documents (or sentences on why there is none) by path."""
    figures: dict[str, Calibration] = {}
    problems: list[tuple[str, str]] = []
    for path, entry in sorted((found or {}).items()):
        if entry.get("problem"):
            problems.append((path, str(entry["problem"])))
            continue
        try:
            figure = parse_calibration(entry.get("document"))
        except CalibrationError as error:
            problems.append((path, str(error)))
            continue
        if not path.endswith(f"/{figure.service}.json"):
            problems.append((path, f"it speaks of the service {figure.service}"))
            continue
        figures[figure.service] = figure
    return figures, problems


def weight_evidence_from_box(box: Mapping[str, Any]) -> dict[str, WeightEvidence]:
    """The newest verdict on each model folder. A document that says nothing usable counts for nothing."""
    newest: dict[str, WeightEvidence] = {}
    states = box.get("weights")
    for document in _documents(box):
        found = _weight_evidence(document, states if isinstance(states, Mapping) else {})
        known = newest.get(found.folder) if found else None
        if found and (known is None or known.finished_at <= found.finished_at):
            newest[found.folder] = found
    return newest


def _documents(box: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    evidence = box.get("evidence")
    documents = evidence.get("weights") if isinstance(evidence, Mapping) else None
    return (
        [document for document in documents if isinstance(document, Mapping)]
        if isinstance(documents, list)
        else []
    )


def _weight_evidence(document: Mapping[str, Any], states: Mapping[str, Any]) -> WeightEvidence | None:
    details = document.get("details")
    folder = details.get("model") if isinstance(details, Mapping) else None
    verdict, finished_at = document.get("verdict"), document.get("finished_at")
    if not (isinstance(folder, str) and isinstance(verdict, str) and isinstance(finished_at, str)):
        return None
    return WeightEvidence(
        folder=folder.rstrip("/"),
        verdict=verdict,
        finished_at=finished_at,
        outdated=_outdated(states.get(folder)),
    )


def _outdated(state: Any) -> tuple[str, ...]:
    """Why a verdict no longer counts: the box says whether a folder's files are still the probed ones."""
    if not isinstance(state, Mapping):
        return ("the box does not say whether the files are still those that were checked",)
    if state.get("current") is True:
        return ()
    reasons = state.get("reasons")
    return tuple(map(str, reasons)) if isinstance(reasons, list) and reasons else ("the files have changed",)
