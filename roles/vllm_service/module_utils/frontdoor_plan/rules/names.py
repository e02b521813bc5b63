"""Names, slots and paths: what can be told from the declaration alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..instance import LAST_SLOT_WITH_DEBUG_PORT, MODELS_ROOT
from ..model import Desired, Refusal, Service

RESERVED_NAMES = {
    "router": "the router's container is called so",
    "engines": "the engines' Compose project is called so",
    "all": "commands use it for every service",
}
_SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr")


def check(desired: Desired) -> list[Refusal]:
    """Every refusal that names, slots and paths give."""
    return [
        *_reserved(desired),
        *_ambiguous_names(desired),
        *_shared_slots(desired),
        *_debug_slots(desired),
        *_models_root(desired),
        *(refusal for service in desired.services for refusal in _path(service, desired)),
        *_model_names(desired),
    ]


def _reserved(desired: Desired) -> Iterator[Refusal]:
    for service in desired.services:
        if service.name in RESERVED_NAMES:
            yield Refusal(
                where=service.where,
                what=f"A service can't be called {service.name}.",
                why=f"The name is reserved: {RESERVED_NAMES[service.name]}.",
                remedy="Give the service another name.",
            )


def _names(service: Service) -> Iterator[tuple[str, str, str]]:
    """Everything a request may call a service: the name, where it is set, what it is."""
    yield service.name, service.where, "the service's name"
    yield service.model, f"{service.where}.model", "the model's name"
    for alias in service.aliases:
        yield alias, f"{service.where}.aliases", "an alias"


def _ambiguous_names(desired: Desired) -> Iterator[Refusal]:
    users: dict[str, dict[str, str]] = defaultdict(dict)
    for service in desired.services:
        for name, where, what in _names(service):
            users[name.casefold()].setdefault(service.name, f"{where} ({what} {name})")
    for name, places in sorted(users.items()):
        if len(places) > 1:
            yield Refusal(
                where=" and ".join(place.split(" ")[0] for place in places.values()),
                what=f"The name {name} means {len(places)} services: {', '.join(places)}.",
                why="A request for it could go to either; names are compared without regard to case: "
                + "; ".join(places.values())
                + ".",
                remedy="Keep the name on one service, and give the others names of their own.",
            )


def _shared_slots(desired: Desired) -> Iterator[Refusal]:
    users: dict[int, list[str]] = defaultdict(list)
    for service in desired.services:
        users[service.slot].append(service.name)
    free = (slot for slot in range(1, 100) if slot not in users)
    for slot, names in sorted(users.items()):
        if len(names) > 1:
            yield Refusal(
                where=" and ".join(f"vllm_service_services.{name}.slot" for name in names),
                what=f"Slot {slot} is taken by {len(names)} services: {', '.join(names)}.",
                why="The slot fixes a service's address and debug port; two services can't have the same.",
                remedy=f"Give all but one a free slot, such as {next(free, 'none: remove a service')}.",
            )


def _debug_slots(desired: Desired) -> Iterator[Refusal]:
    for service in desired.services:
        if service.debug_port and service.slot > LAST_SLOT_WITH_DEBUG_PORT:
            yield Refusal(
                where=f"{service.where}.debug_port",
                what=f"{service.name} has slot {service.slot} and asks for a debug port.",
                why=f"An instance has 100 ports; debug ports reach up to slot {LAST_SLOT_WITH_DEBUG_PORT}.",
                remedy=f"Give it a slot from 1 to {LAST_SLOT_WITH_DEBUG_PORT}, or set debug_port: false.",
            )


def _models_root(desired: Desired) -> Iterator[Refusal]:
    """What is wrong with the folder of all models is told there, and not for each service."""
    root = desired.models_root
    if any(service.path.startswith(f"{root}/") for service in desired.services):
        yield from _folder("vllm_service_models_root", "models' root", root)


def _path(service: Service, desired: Desired) -> Iterator[Refusal]:
    in_root = service.path.startswith(f"{desired.models_root}/")
    if in_root and any(_folder("", "", desired.models_root)):
        return
    where = f"{service.where}.{'model' if service.path.endswith('/' + service.model) else 'path'}"
    parts = service.path.split("/")
    if not service.path.startswith("/") or ".." in parts or "." in parts or "" in parts[1:]:
        yield Refusal(
            where=where,
            what=f"The model folder {service.path} is not a plain path.",
            why="It is mounted into a container, so it has to name one folder of the box without detours.",
            remedy="Write the folder's name below the models' root, or an absolute path, without . .. or //.",
        )
    elif len(parts) < 3:
        yield _of_the_system(where, "model folder", service.path)
    else:
        yield from _folder(where, "model folder", service.path)


def _folder(where: str, kind: str, path: str) -> Iterator[Refusal]:
    if any(path == folder or path.startswith(f"{folder}/") for folder in _SYSTEM_FOLDERS):
        yield _of_the_system(where, kind, path)
    if any(character in path for character in ":\\"):
        yield Refusal(
            where=where,
            what=f"The {kind} {path} holds a colon or a backslash.",
            why="Tools that mount folders read these as separators.",
            remedy="Rename the folder.",
        )


def _of_the_system(where: str, kind: str, path: str) -> Refusal:
    return Refusal(
        where=where,
        what=f"The {kind} {path} belongs to the system.",
        why="Mounting it would hand parts of the box to the engine, and no model lies there.",
        remedy=f"Put models into a folder of their own, such as {MODELS_ROOT}.",
    )


def _model_names(desired: Desired) -> Iterator[Refusal]:
    for service in desired.services:
        if service.model.startswith("-"):
            yield Refusal(
                where=f"{service.where}.model",
                what=f"The model's name {service.model} begins with a hyphen.",
                why="The engine would take it for an option.",
                remedy="Rename the model.",
            )
