"""How what runs is replaced: in which order, what the router knows meanwhile, and the way back. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontdoor_transport import Wanted

REGISTRY_SCHEMA_VERSION = 1
NOT_FRESH = "isn't fresh"
"""In the router's word on a canary that can't be recorded: the engine may have changed since its start."""
PROVEN_WORDS = ("recorded", "matched", "sensible")
"""How the router's word on a canary begins when it shows that the engine is sound."""


# ------------------------------------------------------------------------------------------------ order


def turns(
    services: Iterable[str], waves: Sequence[Sequence[str]], new_image: Collection[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """The services by turn: those of one turn are brought up side by side, turns follow each other.

    `waves` names services that share no device, wave by wave. A service that no wave names goes with
    the first. Of several running services that get a new image (`new_image`), one goes alone and first: when
    the image is no good, the others haven't been touched.
    """
    wanted = list(services)
    placed = {name for wave in waves for name in wave}
    first = [name for name in wanted if name not in placed]
    found = [[name for name in wave if name in wanted] for wave in waves]
    if not found:
        found = [[]]
    found[0] = [*first, *found[0]]
    trying = [name for turn in found for name in turn if name in new_image]
    if len(trying) > 1:
        found = [[trying[0]], *([name for name in turn if name != trying[0]] for turn in found)]
    return tuple(tuple(turn) for turn in found if turn)


def may_begin(service: str, *, runs: bool, failed: Collection[str]) -> str | None:
    """Why a service isn't replaced after others have failed, None when it may be.

    What runs goes on serving as it is; what doesn't run has nothing to lose.
    """
    others = sorted(set(failed) - {service})
    if not runs or not others:
        return None
    return f"goes on as it is, since {' and '.join(others)} failed before its turn; mend that and run again"


# ------------------------------------------------------------------------------------------------ registry


def entries_at_start(
    known: Any, target: Mapping[str, Any], replaced: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """What the router knows of each service while those in `replaced` still run as they were.

    `known` is the registry on the disk, whatever lies there. Where old and new entries would mean the same
    name or address, all are new.
    """
    before = _entries(known)
    wanted = _entries(target)
    mixed = {name: before.get(name, entry) if name in replaced else entry for name, entry in wanted.items()}
    return mixed if _is_consistent(mixed.values()) else wanted


def leaving(known: Any, target: Mapping[str, Any]) -> list[str]:
    """Services that the router knows and that are planned no more."""
    return sorted(_entries(known).keys() - _entries(target).keys())


def registry_text(target: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> str:
    """The registry with these entries, in the order and form in which the plan writes it."""
    services = [entries[service["name"]] for service in target["services"]]
    return json.dumps({**target, "services": services}, indent=2, ensure_ascii=False) + "\n"


def entry_of(document: Any, service: str) -> Mapping[str, Any] | None:
    """A service's entry in a registry; None where it has none or the registry can't be understood."""
    return _entries(document).get(service)


def _entries(document: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(document, Mapping) or document.get("schema_version") != REGISTRY_SCHEMA_VERSION:
        return {}
    services = document.get("services")
    entries = services if isinstance(services, list) else []
    return {
        entry["name"]: entry
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
    }


def _is_consistent(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Whether no name and no address means two services."""
    taken: set[str] = set()
    for entry in entries:
        names = [entry["name"], entry.get("model", ""), *entry.get("aliases", [])]
        own = {f"name {str(name).casefold()}" for name in names} | {f"address {entry.get('base_url')}"}
        if own & taken:
            return False
        taken |= own
    return True


# ------------------------------------------------------------------------------------------------ proof


def proof_problem(answer: Mapping[str, Any]) -> str | None:
    """What is missing in the router's answer to `prove`, None when the service is proven."""
    word = str(answer.get("canary", ""))
    if word.startswith(PROVEN_WORDS):
        return None
    return f"its canary could not be used ({word or 'no word on it'}). {_what_helps(word, answer)}"


def _what_helps(word: str, answer: Mapping[str, Any]) -> str:
    """What to do about a canary that proves nothing."""
    service = answer.get("service", "SERVICE")
    if NOT_FRESH in word:
        return f"Only a new process can be asked: `vllmctl restart {service}`, then run this again."
    return (
        f"Check that vllm_service_services.{service}.task is what the model does (generate, embed or rerank) "
        f"and that its model folder is whole, and read its log (`vllmctl logs {service}`); "
        f"`vllmctl prove {service}` asks it again."
    )


# --------------------------------------------------------------------------------- the way back


@dataclass(frozen=True)
class Previous:
    """An earlier rendering that services may go back to, and its files by path below the root.

    `transports` is what its plan wants of the ways between GPUs, by service.
    """

    name: str
    compose: Mapping[str, Any]
    contents: Mapping[str, bytes]
    transports: Mapping[str, Wanted] = field(default_factory=dict)


def no_way_back(service: str, compose: Mapping[str, Any], previous: Previous | None) -> str | None:
    """Why a service can't go back, None when it can."""
    if previous is None:
        return "no earlier release is known that may be deployed today"
    before = (previous.compose.get("services") or {}).get(service)
    if before is None:
        return f"{previous.name} has no such service"
    if before == compose["services"][service]:
        return f"it is the same in {previous.name}"
    return None


def with_service_of(compose: Mapping[str, Any], previous: Mapping[str, Any], service: str) -> dict[str, Any]:
    """A Compose document in which one service, with its networks, is as it was in an earlier one."""
    before = previous["services"][service]
    kept = previous.get("networks") or {}
    networks = {key: kept[key] for key in network_keys(before) if key in kept}
    return {
        **compose,
        "services": {**compose["services"], service: before},
        "networks": {**(compose.get("networks") or {}), **networks},
    }


def network_keys(service: Mapping[str, Any]) -> list[str]:
    """The networks of a Compose service, by their keys in the document."""
    return [] if service.get("network_mode") else list(service.get("networks") or ())


def environment_files(service: Mapping[str, Any]) -> list[str]:
    """The environment files of a Compose service, relative to the document's folder."""
    declared = service.get("env_file") or []
    entries = [declared] if isinstance(declared, (str, Mapping)) else declared
    return [str(entry["path"] if isinstance(entry, Mapping) else entry) for entry in entries]


def compose_text(compose: Mapping[str, Any], words: str) -> str:
    """A Compose file for what went back; JSON is YAML too."""
    return f"# {words}\n{json.dumps(compose, indent=2, ensure_ascii=False)}\n"
