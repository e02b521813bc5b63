"""What must change on the box so that it equals a rendering. Pure: no I/O, no clock, no globals.

`desired_services` and `desired_networks` read the rendering, `container_from_inspect` and its neighbours what
Docker says. `plan_changes` compares the two and returns changes, each with its sentence, in the order of
execution; `refusals` returns what a person has to settle first; `verdict` judges a container that starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RECORD_SCHEMA_VERSION = 1

LABEL_PROJECT = "com.docker.compose.project"
LABEL_COMPOSE_SERVICE = "com.docker.compose.service"
LABEL_COMPOSE_NETWORK = "com.docker.compose.network"
LABEL_ONEOFF = "com.docker.compose.oneoff"
LABEL_INSTANCE = "vllm-frontdoor.instance"
LABEL_DEFINITION = "vllm-frontdoor.definition"

# Compose writes more labels than these (its version, hashes, paths); those differ between its versions
# (2.26.1, 5.6.1) for one and the same container.
STABLE_COMPOSE_LABELS = frozenset({LABEL_PROJECT, LABEL_COMPOSE_SERVICE, LABEL_ONEOFF})
COMPOSE_LABEL_PREFIX = "com.docker.compose."

# A container without a health check counts as up when it has run this long.
SETTLED_SECONDS = 2.0
# One restart may be bad luck (two engines measured one GPU's memory at once); the second is a pattern.
RESTARTS_UNTIL_FAILED = 2
# "unhealthy" may be a memory of before a repair (a paused container fails its probes); newer probes count.
PROBES_UNTIL_UNHEALTHY = 2

EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {})


# ------------------------------------------------------------------------------------------------ the To-Be


@dataclass(frozen=True)
class DesiredPath:
    """A file, secret or directory as it has to be. `name` is what people read, `path` is absolute.

    `digest` is the sha256 of a file's content; secrets and directories have none. A file that is written
    `once` belongs to another project, which keeps it right: here it only has to be there.
    """

    kind: Literal["file", "directory", "secret"]
    name: str
    path: str
    mode: int
    uid: int
    gid: int
    digest: str | None = None
    once: bool = False


@dataclass(frozen=True)
class Endpoint:
    """A service's place in a network."""

    network: str
    address: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class DesiredService:
    """A service of the Compose document. `endpoints` is None when it uses a network mode (`host`) instead."""

    name: str
    container: str
    definition: str | None
    image: str
    environment: str
    endpoints: tuple[Endpoint, ...] | None


@dataclass(frozen=True)
class DesiredNetwork:
    """A network of the Compose document that some service uses; `external` ones are only looked for."""

    key: str
    name: str
    external: bool = False
    driver: str = "bridge"
    internal: bool = False
    subnets: tuple[tuple[str, str | None], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DesiredReload:
    """The router rereads its registry when a file below `prefix` changed, unless `service` itself starts."""

    prefix: str
    service: str


@dataclass(frozen=True)
class Desired:
    """Everything one run has to make true. With `proves`, the router proves what was started."""

    project: str
    instance: str
    root: str
    paths: tuple[DesiredPath, ...] = ()
    services: tuple[DesiredService, ...] = ()
    networks: tuple[DesiredNetwork, ...] = ()
    reload: DesiredReload | None = None
    proves: bool = False
    tidied: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Directories in which nothing but these names is left in the end. Others see to their being there."""


# ------------------------------------------------------------------------------------------------ the As-Is


@dataclass(frozen=True)
class PathStatus:
    """What lies at a path. Links are not followed for files and secrets."""

    kind: Literal["missing", "file", "directory", "link", "other"]
    mode: int = 0
    uid: int = 0
    gid: int = 0
    digest: str | None = None
    size: int = 0


MISSING = PathStatus("missing")


@dataclass(frozen=True)
class Container:
    """A container as Docker describes it; `networks` maps network names to ids."""

    id: str
    name: str
    state: str
    image_id: str
    image: str = ""
    exit_code: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    health: str | None = None
    failed_probes: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class Network:
    """A network as Docker describes it; `attached` holds the ids of running containers in it."""

    id: str
    name: str
    driver: str = "bridge"
    internal: bool = False
    subnets: tuple[tuple[str, str | None], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    attached: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedContainer:
    """How a container was right after it had been created, to tell what was altered by hand since."""

    definition: str | None
    environment: str
    fingerprint: Mapping[str, str]
    engine: str


@dataclass(frozen=True)
class Record:
    """What earlier runs deployed for this project; `unproven` are services started and not proven since."""

    services: Mapping[str, RecordedContainer] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    reload_pending: bool = False
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """The box. `images` maps references to ids, or to None when they are not on the machine."""

    paths: Mapping[str, PathStatus] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    networks: tuple[Network, ...] = ()
    images: Mapping[str, str | None] = field(default_factory=dict)
    record: Record = Record()
    engine: str = ""
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What lies in the tidied directories that are there."""


# ------------------------------------------------------------------------------------------------ changes


@dataclass(frozen=True)
class Change:
    """One thing to do; `sentence` says what was found and what is done about it."""

    sentence: str


@dataclass(frozen=True)
class MakeDirectory(Change):
    path: str


@dataclass(frozen=True)
class WriteFile(Change):
    path: str


@dataclass(frozen=True)
class CreateSecret(Change):
    path: str


@dataclass(frozen=True)
class SetPermissions(Change):
    path: str


@dataclass(frozen=True)
class RemoveFile(Change):
    path: str


@dataclass(frozen=True)
class RemoveEntry(Change):
    """Of a directory: a file, or a folder with all that is in it."""

    path: str


@dataclass(frozen=True)
class RemoveContainer(Change):
    container: str


@dataclass(frozen=True)
class DisconnectNetwork(Change):
    service: str
    container: str
    network: str


@dataclass(frozen=True)
class RemoveNetwork(Change):
    network: str


@dataclass(frozen=True)
class CreateNetwork(Change):
    """Made by Compose together with the containers in it; `replaces` when one of that name must go first."""

    network: str
    replaces: bool


@dataclass(frozen=True)
class RenameContainer(Change):
    service: str
    container: str
    name: str


@dataclass(frozen=True)
class CreateContainer(Change):
    """`replaces` is the id of the container that must go first, None when there is none."""

    service: str
    replaces: str | None


@dataclass(frozen=True)
class ConnectNetwork(Change):
    service: str
    container: str
    network: str


@dataclass(frozen=True)
class UnpauseContainer(Change):
    service: str
    container: str


@dataclass(frozen=True)
class StartContainer(Change):
    service: str
    container: str


@dataclass(frozen=True)
class ProveService(Change):
    """It runs already, but an earlier run didn't come to its proof."""

    service: str


@dataclass(frozen=True)
class ReloadRouter(Change):
    pass


@dataclass(frozen=True)
class AdoptContainers(Change):
    services: tuple[str, ...]


# ------------------------------------------------------------------------------ reading the Compose document


def desired_services(
    compose: Mapping[str, Any], project: str, environment_digests: Mapping[str, str]
) -> tuple[DesiredService, ...]:
    """The services of a Compose document given as data.

    `environment_digests` maps a service to the digest of its environment files' planned content.
    """
    services: Mapping[str, Any] = compose.get("services") or {}
    return tuple(
        DesiredService(
            name=name,
            container=str(service.get("container_name") or f"{project}-{name}-1"),
            definition=labels_of(service).get(LABEL_DEFINITION),
            image=str(service.get("image", "")),
            environment=environment_digests.get(name, ""),
            endpoints=_endpoints(service, compose, project),
        )
        for name, service in services.items()
    )


def desired_networks(compose: Mapping[str, Any], project: str) -> tuple[DesiredNetwork, ...]:
    """The networks that the services of a Compose document use."""
    used = sorted(
        {key for service in (compose.get("services") or {}).values() for key in _network_keys(service)}
    )
    return tuple(_desired_network(key, compose, project) for key in used)


def labels_of(definition: Mapping[str, Any]) -> dict[str, str]:
    """Labels of a service or network, written as a mapping or as a list of `name=value`."""
    labels = definition.get("labels") or {}
    if isinstance(labels, Mapping):
        return {str(name): _label_value(value) for name, value in labels.items()}
    return dict(str(item).partition("=")[::2] for item in labels)


def _label_value(value: Any) -> str:
    # As YAML's booleans and nothing are written by Compose.
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _network_keys(service: Mapping[str, Any]) -> list[str]:
    if service.get("network_mode"):
        return []
    networks = service.get("networks")
    return list(networks) if networks else ["default"]


def _network_name(key: str, compose: Mapping[str, Any], project: str) -> str:
    definition = (compose.get("networks") or {}).get(key) or {}
    external = definition.get("external")
    if definition.get("name"):
        return str(definition["name"])
    return key if external else f"{project}_{key}"


def _endpoints(
    service: Mapping[str, Any], compose: Mapping[str, Any], project: str
) -> tuple[Endpoint, ...] | None:
    if service.get("network_mode"):
        return None
    declared = service.get("networks") or {}
    details: Mapping[str, Any] = declared if isinstance(declared, Mapping) else {}
    return tuple(
        Endpoint(
            network=_network_name(key, compose, project),
            address=(details.get(key) or {}).get("ipv4_address"),
            aliases=tuple((details.get(key) or {}).get("aliases") or ()),
        )
        for key in _network_keys(service)
    )


def _desired_network(key: str, compose: Mapping[str, Any], project: str) -> DesiredNetwork:
    definition: Mapping[str, Any] = (compose.get("networks") or {}).get(key) or {}
    pools = (definition.get("ipam") or {}).get("config") or []
    return DesiredNetwork(
        key=key,
        name=_network_name(key, compose, project),
        external=bool(definition.get("external")),
        driver=str(definition.get("driver") or "bridge"),
        internal=bool(definition.get("internal")),
        subnets=tuple((str(pool["subnet"]), pool.get("gateway")) for pool in pools if pool.get("subnet")),
        labels=labels_of(definition),
        options={str(k): str(v) for k, v in (definition.get("driver_opts") or {}).items()},
    )


# ----------------------------------------------------------------------------------- reading Docker's inspect


def container_from_inspect(document: Mapping[str, Any]) -> Container:
    """A container from one element of `docker container inspect`."""
    state = document["State"]
    networks = document["NetworkSettings"].get("Networks") or {}
    return Container(
        id=document["Id"],
        name=document["Name"].lstrip("/"),
        state=state["Status"],
        image_id=document["Image"],
        image=document["Config"].get("Image") or "",
        exit_code=int(state.get("ExitCode") or 0),
        labels=document["Config"].get("Labels") or {},
        networks={name: (endpoint or {}).get("NetworkID") or "" for name, endpoint in networks.items()},
        fingerprint=fingerprint(document),
        health=(state.get("Health") or {}).get("Status"),
        failed_probes=int((state.get("Health") or {}).get("FailingStreak") or 0),
        restarts=int(document.get("RestartCount") or 0),
    )


def network_from_inspect(document: Mapping[str, Any]) -> Network:
    """A network from one element of `docker network inspect`."""
    pools = (document.get("IPAM") or {}).get("Config") or []
    return Network(
        id=document["Id"],
        name=document["Name"],
        driver=document["Driver"],
        internal=bool(document.get("Internal")),
        subnets=tuple((pool["Subnet"], pool.get("Gateway")) for pool in pools if pool.get("Subnet")),
        labels=document.get("Labels") or {},
        options=document.get("Options") or {},
        attached=tuple(sorted(document.get("Containers") or {})),
    )


def fingerprint(document: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each setting of a container, by the setting's name.

    Digests and not values, because settings may hold secrets. Left out: what Docker makes up (ids, names of
    anonymous volumes, addresses nobody asked for), what Compose writes differently from version to version,
    the order of what has none, and settings that are empty, so that a newer Docker's new ones change nothing.
    """
    short_id = document["Id"][:12]
    config = dict(document["Config"])
    if config.get("Hostname") == short_id:
        del config["Hostname"]
    config["Labels"] = {
        name: value
        for name, value in (config.get("Labels") or {}).items()
        if name in STABLE_COMPOSE_LABELS or not name.startswith(COMPOSE_LABEL_PREFIX)
    }
    host = {key: value for key, value in document["HostConfig"].items() if key != "ContainerIDFile"}
    host["Binds"] = sorted(host.get("Binds") or [])
    networks = document["NetworkSettings"].get("Networks") or {}
    settings: dict[str, Any] = {f"Config.{key}": value for key, value in config.items()}
    settings |= {f"HostConfig.{key}": value for key, value in host.items()}
    settings |= {
        _network_setting(name): _place(endpoint or {}, short_id) for name, endpoint in networks.items()
    }
    settings["Mounts"] = sorted((_mount(mount) for mount in document.get("Mounts") or []), key=_canonical)
    return {key: digest(value) for key, value in sorted(settings.items()) if value not in EMPTY}


def _network_setting(network: str) -> str:
    return f"Networks.{network}"


def _place(endpoint: Mapping[str, Any], short_id: str) -> dict[str, Any]:
    aliases = sorted(set(endpoint.get("Aliases") or []) - {short_id})
    wanted = {"IPAMConfig": endpoint.get("IPAMConfig"), "Aliases": aliases, "Links": endpoint.get("Links")}
    # The entry stays even when all is empty: being in the network is itself a setting.
    return {"Connected": True, **{key: value for key, value in wanted.items() if value not in EMPTY}}


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    anonymous = mount.get("Type") == "volume" and len(str(mount.get("Name"))) == 64
    return {k: v for k, v in mount.items() if not (anonymous and k in ("Name", "Source"))}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """A short digest of a JSON value, the same for equal values."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------ the record


def record_from_document(document: Any) -> Record:
    """The record of earlier runs. Raises ValueError when the document is none of ours."""
    if not isinstance(document, dict) or document.get("schema_version") != RECORD_SCHEMA_VERSION:
        raise ValueError("not a record of this schema version")
    try:
        services = {
            str(name): RecordedContainer(
                definition=entry["definition"],
                environment=entry["environment"],
                fingerprint=dict(entry["fingerprint"]),
                engine=entry["engine"],
            )
            for name, entry in document["services"].items()
        }
        unproven = tuple(document.get("unproven", ()))  # records from before there were proofs have none
        return Record(services, tuple(document["files"]), bool(document["reload_pending"]), unproven)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"incomplete record: {error}") from error


def record_to_document(record: Record, project: str) -> dict[str, Any]:
    """The record as JSON data."""
    return {
        "schema_version": RECORD_SCHEMA_VERSION,
        "project": project,
        "files": sorted(record.files),
        "reload_pending": record.reload_pending,
        "unproven": sorted(record.unproven),
        "services": {
            name: {
                "definition": entry.definition,
                "environment": entry.environment,
                "engine": entry.engine,
                "fingerprint": dict(entry.fingerprint),
            }
            for name, entry in sorted(record.services.items())
        },
    }


def next_record(
    desired: Desired,
    observed: Observed,
    changes: Iterable[Change],
    *,
    reload_pending: bool,
    unproven: Iterable[str] = (),
) -> Record:
    """The record after the changes: what was created or adopted is described anew, the rest as before.

    A container is recorded by its own definition, which is an earlier one where a service went back.
    """
    anew = {change.service for change in changes if isinstance(change, CreateContainer)}
    services = {}
    for service in desired.services:
        container = primary(service, desired, observed)
        known = observed.record.services.get(service.name)
        if container is None:
            continue
        definition = container.labels.get(LABEL_DEFINITION)
        if known is None or service.name in anew or known.definition != definition:
            known = RecordedContainer(definition, service.environment, container.fingerprint, observed.engine)
        services[service.name] = known
    files = tuple(path.name for path in desired.paths if path.kind == "file")
    return Record(services, files, reload_pending, tuple(sorted(unproven)))


# ------------------------------------------------------------------------------------------------ comparing


def is_ours(container: Container, desired: Desired) -> bool:
    """Whether a container belongs to this project of this instance; no other one is ever touched."""
    labels = container.labels
    return (
        labels.get(LABEL_PROJECT) == desired.project
        and labels.get(LABEL_INSTANCE) == desired.instance
        and labels.get(LABEL_ONEOFF, "False") != "True"
    )


def containers_of(service: DesiredService, desired: Desired, observed: Observed) -> list[Container]:
    """Our containers of a service, the one with the right name first."""
    own = [
        container
        for container in observed.containers
        if is_ours(container, desired) and container.labels.get(LABEL_COMPOSE_SERVICE) == service.name
    ]
    return sorted(
        own, key=lambda container: (container.name != service.container, container.name, container.id)
    )


def primary(service: DesiredService, desired: Desired, observed: Observed) -> Container | None:
    """The container of a service that is kept, repaired or replaced."""
    own = containers_of(service, desired, observed)
    return own[0] if own else None


def altered_settings(recorded: Mapping[str, str], seen: Mapping[str, str], *, same_engine: bool) -> list[str]:
    """Names of the settings that differ from the recorded ones.

    A container lives on when Docker is upgraded, and the new version may describe it with more or fewer
    settings: then only those that both name are compared.
    """
    names = recorded.keys() | seen.keys() if same_engine else recorded.keys() & seen.keys()
    return sorted(name for name in names if recorded.get(name) != seen.get(name))


def network_fault(wanted: DesiredNetwork, seen: Network | None, project: str) -> str | None:
    """Why a network has to be made anew; None when it is right."""
    if seen is None:
        return "missing"
    if seen.labels.get(LABEL_PROJECT) != project or seen.labels.get(LABEL_COMPOSE_NETWORK) != wanted.key:
        return "not made by this project"
    faults = []
    if seen.driver != wanted.driver:
        faults.append(f"driver is {seen.driver}, not {wanted.driver}")
    if seen.internal != wanted.internal:
        faults.append("it is internal" if seen.internal else "it is not internal")
    if not _subnets_fit(wanted.subnets, seen.subnets):
        faults.append(f"subnet is {_subnet_words(seen.subnets)}, not {_subnet_words(wanted.subnets)}")
    labels = {name: value for name, value in wanted.labels.items() if name != LABEL_DEFINITION}
    faults += _differing("label", labels, seen.labels)
    faults += _differing("option", wanted.options, seen.options)
    if not faults and seen.labels.get(LABEL_DEFINITION) != wanted.labels.get(LABEL_DEFINITION):
        faults.append("definition changed")
    return ", ".join(faults) or None


def _subnets_fit(
    wanted: tuple[tuple[str, str | None], ...], seen: tuple[tuple[str, str | None], ...]
) -> bool:
    if not wanted:
        return True
    actual = dict(seen)
    return set(actual) == {subnet for subnet, _ in wanted} and all(
        gateway in (None, actual[subnet]) for subnet, gateway in wanted
    )


def _subnet_words(subnets: tuple[tuple[str, str | None], ...]) -> str:
    return (
        " and ".join(f"{net} (gateway {gateway})" if gateway else net for net, gateway in subnets) or "none"
    )


def _differing(what: str, wanted: Mapping[str, str], seen: Mapping[str, str]) -> list[str]:
    return [f"{what} {name} differs" for name in sorted(wanted) if seen.get(name) != wanted[name]]


def plan_changes(desired: Desired, observed: Observed) -> list[Change]:
    """Everything that has to change, in the order of execution; empty when the box equals the rendering."""
    paths = _path_changes(desired, observed)
    obsolete = _obsolete_files(desired, observed)
    faults = _network_faults(desired, observed)
    containers = [
        change
        for service in desired.services
        for change in _service_changes(service, desired, observed, faults)
    ]
    return [
        *paths,
        *_container_removals(desired, observed),
        *_of(containers, DisconnectNetwork),
        *_network_removals(desired, observed),
        *_network_creations(desired, observed, faults),
        *_of(containers, RenameContainer),
        *_of(containers, CreateContainer),
        *_of(containers, ConnectNetwork),
        *_of(containers, UnpauseContainer),
        *_of(containers, StartContainer),
        *_proofs(desired, observed, containers),
        *obsolete,
        *_strays(desired, observed),
        *_adoptions(desired, observed, containers),
        *_reloads(desired, observed, [*paths, *obsolete], containers),
    ]


def _of(changes: list[Change], kind: type[Change]) -> list[Change]:
    return [change for change in changes if isinstance(change, kind)]


def _path_changes(desired: Desired, observed: Observed) -> list[Change]:
    found = (_path_change(wanted, observed.paths.get(wanted.path, MISSING)) for wanted in desired.paths)
    return [change for change in found if change is not None]


def _path_change(wanted: DesiredPath, seen: PathStatus) -> Change | None:
    subject = f"{wanted.kind} {wanted.name}"
    if wanted.kind == "directory":
        if seen.kind == "missing":
            return MakeDirectory(f"{subject}: missing, created", wanted.path)
    elif wanted.kind == "secret":
        if seen.kind == "missing" or seen.size == 0:
            reason = "missing" if seen.kind == "missing" else "empty"
            return CreateSecret(f"{subject}: {reason}, created", wanted.path)
    elif seen.kind == "missing":
        return WriteFile(f"{subject}: missing, written", wanted.path)
    elif wanted.once and seen.kind == "file":
        return None
    elif seen.kind == "link":
        return WriteFile(f"{subject}: is a symbolic link, replaced by a file", wanted.path)
    elif seen.digest != wanted.digest:
        faults = " and ".join(["content differs", *(fault for fault, _ in _permission_faults(wanted, seen))])
        return WriteFile(f"{subject}: {faults}, rewritten", wanted.path)
    if faults_and_cures := _permission_faults(wanted, seen):
        words = " and ".join(f"{fault}, set to {cure}" for fault, cure in faults_and_cures)
        return SetPermissions(f"{subject}: {words}", wanted.path)
    return None


def _permission_faults(wanted: DesiredPath, seen: PathStatus) -> list[tuple[str, str]]:
    faults = []
    if seen.mode != wanted.mode:
        faults.append((f"mode is {seen.mode:04o}", f"{wanted.mode:04o}"))
    if (seen.uid, seen.gid) != (wanted.uid, wanted.gid):
        faults.append((f"owner is {seen.uid}:{seen.gid}", f"{wanted.uid}:{wanted.gid}"))
    return faults


def _obsolete_files(desired: Desired, observed: Observed) -> list[Change]:
    planned = {path.name for path in desired.paths}
    return [
        RemoveFile(f"file {name}: no longer planned, removed", path)
        for name in observed.record.files
        if name not in planned
        and observed.paths.get(path := f"{desired.root}/{name}", MISSING).kind in ("file", "link")
    ]


def _strays(desired: Desired, observed: Observed) -> list[Change]:
    """What no longer belongs into a directory. It goes late: a container that goes may still use it."""
    return [
        RemoveEntry(f"leftover {directory}/{name}: no longer planned, removed", f"{directory}/{name}")
        for directory, wanted in desired.tidied.items()
        for name in observed.entries.get(directory, ())
        if name not in wanted
    ]


def _container_removals(desired: Desired, observed: Observed) -> list[Change]:
    planned = {service.name: service for service in desired.services}
    removals: list[Change] = []
    for container in sorted(observed.containers, key=lambda one: one.name):
        if not is_ours(container, desired):
            continue
        service = planned.get(container.labels.get(LABEL_COMPOSE_SERVICE, ""))
        if service is None:
            sentence = f"container {container.name}: no longer planned, removed"
        elif primary(service, desired, observed) != container:
            sentence = f"container {container.name}: a second one of service {service.name}, removed"
        else:
            continue
        removals.append(RemoveContainer(sentence, container.id))
    return removals


def _networks_by_name(observed: Observed) -> dict[str, Network]:
    return {network.name: network for network in observed.networks}


def _network_faults(desired: Desired, observed: Observed) -> dict[str, str]:
    seen = _networks_by_name(observed)
    faults = {
        wanted.name: network_fault(wanted, seen.get(wanted.name), desired.project)
        for wanted in desired.networks
        if not wanted.external
    }
    return {name: fault for name, fault in faults.items() if fault is not None}


def _network_removals(desired: Desired, observed: Observed) -> list[Change]:
    planned = {network.name for network in desired.networks}
    return [
        RemoveNetwork(f"network {network.name}: no longer planned, removed", network.name)
        for network in sorted(observed.networks, key=lambda one: one.name)
        if network.labels.get(LABEL_PROJECT) == desired.project
        and network.labels.get(LABEL_INSTANCE) == desired.instance
        and network.name not in planned
    ]


def _network_creations(desired: Desired, observed: Observed, faults: Mapping[str, str]) -> list[Change]:
    seen = _networks_by_name(observed)
    changes: list[Change] = []
    for network in desired.networks:
        if (fault := faults.get(network.name)) is not None:
            replaces = network.name in seen
            verb = "replaced" if replaces else "created"
            changes.append(CreateNetwork(f"network {network.name}: {fault}, {verb}", network.name, replaces))
    return changes


def _service_changes(
    service: DesiredService, desired: Desired, observed: Observed, faults: Mapping[str, str]
) -> list[Change]:
    container = primary(service, desired, observed)
    subject = f"container {service.container}"
    if container is None:
        known = service.name in observed.record.services
        reason = "no longer there" if known else "missing"
        return [CreateContainer(f"{subject}: {reason}, created", service.name, None)]
    if reasons := _reasons_to_recreate(service, container, observed, faults):
        sentence = f"{subject}: {' and '.join(reasons)}, recreated"
        # What else it is connected to goes away with it.
        return [CreateContainer(sentence, service.name, container.id)]
    return _repairs(service, container, subject)


def _reasons_to_recreate(
    service: DesiredService, container: Container, observed: Observed, faults: Mapping[str, str]
) -> list[str]:
    reasons = []
    if container.labels.get(LABEL_DEFINITION) != service.definition:
        reasons.append("definition changed")
    if observed.images.get(service.image) not in (None, container.image_id):
        reasons.append("image changed")
    known = observed.record.services.get(service.name)
    if not reasons and known is not None and known.definition == service.definition:
        reasons += _differences_from_record(service, container, known, observed, faults)
    reasons += _network_reasons(service, container, observed, faults)
    if container.state in ("dead", "removing"):
        reasons.append(f"it is {container.state}")
    return reasons


def _differences_from_record(
    service: DesiredService,
    container: Container,
    known: RecordedContainer,
    observed: Observed,
    faults: Mapping[str, str],
) -> list[str]:
    reasons = []
    if known.environment != service.environment:
        reasons.append("environment file changed")
    # Told as connections or as networks that are made anew, and not once more as settings.
    told = _memberships_that_differ(service, container) | {_network_setting(name) for name in faults}
    altered = [
        name
        for name in altered_settings(
            known.fingerprint, container.fingerprint, same_engine=known.engine == observed.engine
        )
        if name not in told
    ]
    if altered:
        reasons.append(f"altered by hand ({', '.join(altered)})")
    return reasons


def _memberships_that_differ(service: DesiredService, container: Container) -> set[str]:
    """Settings that say "connected" or not: repaired by connecting, without a new container."""
    if service.endpoints is None:
        return set()
    wanted = {endpoint.network for endpoint in service.endpoints}
    return {_network_setting(name) for name in wanted ^ set(container.networks)}


def _network_reasons(
    service: DesiredService, container: Container, observed: Observed, faults: Mapping[str, str]
) -> list[str]:
    seen = _networks_by_name(observed)
    reasons = []
    for endpoint in service.endpoints or ():
        known_id = container.networks.get(endpoint.network)
        if endpoint.network in faults:
            reasons.append(f"its network {endpoint.network} is made anew")
        elif known_id and endpoint.network in seen and known_id != seen[endpoint.network].id:
            reasons.append(f"its network {endpoint.network} was replaced")
    return reasons


def _repairs(service: DesiredService, container: Container, subject: str) -> list[Change]:
    changes: list[Change] = []
    if container.name != service.container:
        sentence = f"{subject}: renamed to {container.name} by someone, renamed back"
        changes.append(RenameContainer(sentence, service.name, container.id, service.container))
    if service.endpoints is not None:
        changes += _connections(service, container, subject)
    if container.state == "paused":
        changes.append(UnpauseContainer(f"{subject}: paused, resumed", service.name, container.id))
    elif container.state == "exited":
        sentence = f"{subject}: stopped (exit code {container.exit_code}), started"
        changes.append(StartContainer(sentence, service.name, container.id))
    elif container.state == "created":
        changes.append(StartContainer(f"{subject}: never started, started", service.name, container.id))
    return changes


def _connections(service: DesiredService, container: Container, subject: str) -> list[Change]:
    wanted = [endpoint.network for endpoint in service.endpoints or ()]
    # A stopped container without any network is in the network "none".
    extra = sorted(set(container.networks) - set(wanted) - {"none"})
    disconnects: list[Change] = [
        DisconnectNetwork(
            f"{subject}: connected to network {name} by someone, disconnected",
            service.name,
            container.id,
            name,
        )
        for name in extra
    ]
    connects: list[Change] = [
        ConnectNetwork(
            f"{subject}: disconnected from network {name}, connected again", service.name, container.id, name
        )
        for name in wanted
        if name not in container.networks
    ]
    return disconnects + connects


def _adoptions(desired: Desired, observed: Observed, containers: list[Change]) -> list[Change]:
    created = {change.service for change in containers if isinstance(change, CreateContainer)}
    unknown = tuple(
        service.name
        for service in desired.services
        if service.name not in created and not _is_recorded(service, observed.record)
    )
    if not unknown:
        return []
    sentence = f"record of project {desired.project}: {', '.join(unknown)} missing, taken from the containers"
    return [AdoptContainers(sentence, unknown)]


def _proofs(desired: Desired, observed: Observed, containers: list[Change]) -> list[Change]:
    started = {c.service for c in containers if isinstance(c, (CreateContainer, StartContainer))}
    if not desired.proves:
        return []
    return [
        ProveService(f"container {service.container}: not proven by an earlier run, proven", service.name)
        for service in desired.services
        if service.name in observed.record.unproven and service.name not in started
    ]


def _is_recorded(service: DesiredService, record: Record) -> bool:
    known = record.services.get(service.name)
    return known is not None and known.definition == service.definition


def _reloads(
    desired: Desired, observed: Observed, paths: list[Change], containers: list[Change]
) -> list[Change]:
    if desired.reload is None:
        return []
    starts = {c.service for c in containers if isinstance(c, (CreateContainer, StartContainer))}
    if desired.reload.service in starts:
        return []
    below = f"{desired.root}/{desired.reload.prefix}"
    changed = [
        c.path.removeprefix(f"{desired.root}/")
        for c in paths
        if isinstance(c, (WriteFile, RemoveFile)) and c.path.startswith(below)
    ]
    if changed:
        return [ReloadRouter(f"router: {', '.join(changed)} changed, reloaded")]
    if observed.record.reload_pending:
        return [ReloadRouter("router: an earlier reload did not succeed, reloaded")]
    return []


# ------------------------------------------------------------------------------------------------ refusals


def refusals(desired: Desired, observed: Observed) -> list[str]:
    """What a person has to settle before anything may be touched, a sentence each."""
    return [
        *_path_refusals(desired, observed),
        *_name_refusals(desired, observed),
        *_network_refusals(desired, observed),
    ]


def missing_images(desired: Desired, observed: Observed) -> list[str]:
    """Images that containers need and the machine has not, a sentence each."""
    users: dict[str, list[str]] = {}
    for service in desired.services:
        if observed.images.get(service.image) is None:
            users.setdefault(service.image, []).append(service.name)
    return [
        f"image {image}: not on this machine, needed by {', '.join(names)}; load, pull or build it first"
        for image, names in users.items()
    ]


def _path_refusals(desired: Desired, observed: Observed) -> list[str]:
    fitting = {"file": ("file", "link"), "secret": ("file",), "directory": ("directory",)}
    found = []
    for wanted in desired.paths:
        seen = observed.paths.get(wanted.path, MISSING)
        if seen.kind != "missing" and seen.kind not in fitting[wanted.kind]:
            what = {"link": "a symbolic link", "other": "something else"}.get(seen.kind, f"a {seen.kind}")
            found.append(f"{wanted.kind} {wanted.name}: {what} lies at {wanted.path}; move it away")
    return found


def _name_refusals(desired: Desired, observed: Observed) -> list[str]:
    by_name = {container.name: container for container in observed.containers}
    found = []
    for service in desired.services:
        holder = by_name.get(service.container)
        if holder is not None and not is_ours(holder, desired):
            project = holder.labels.get(LABEL_PROJECT)
            origin = f"Compose project {project}" if project else "no Compose project"
            found.append(
                f"container {service.container}: a container that is not ours holds this name "
                f"(id {holder.id[:12]}, image {holder.image}, {origin}); rename or remove it"
            )
    return found


def _network_refusals(desired: Desired, observed: Observed) -> list[str]:
    seen = _networks_by_name(observed)
    found = [
        f"network {network.name}: declared as external and not on this machine; create it or correct its name"
        for network in desired.networks
        if network.external and network.name not in seen
    ]
    removals = _of(_network_removals(desired, observed), RemoveNetwork)
    leaving = sorted(
        {c.network for c in removals if isinstance(c, RemoveNetwork)}
        | {name for name in _network_faults(desired, observed) if name in seen}
    )
    foreign = {c.id: c.name for c in observed.containers if not is_ours(c, desired)}
    for name in leaving:
        strangers = sorted(foreign[one] for one in seen[name].attached if one in foreign)
        if strangers:
            found.append(
                f"network {name}: has to be removed, but containers that are not ours are connected to it "
                f"({', '.join(strangers)}); disconnect them"
            )
    return found


# ---------------------------------------------------------------------------------------- is it coming up?


@dataclass(frozen=True)
class Sample:
    """A look at a container that should come up; restarts and failed probes since the run began to wait."""

    state: str
    health: str | None
    exit_code: int
    restarts: int
    failed_probes: int
    up_seconds: float


def sample_of(container: Container, before: Container | None, up_seconds: float) -> Sample:
    """A look at a container, counted from an earlier look at it; from nothing when it was started anew."""
    restarts = container.restarts - (before.restarts if before else 0)
    failed = container.failed_probes - (before.failed_probes if before else 0)
    if failed < 0:
        failed = container.failed_probes  # it was healthy in between
    return Sample(container.state, container.health, container.exit_code, restarts, failed, up_seconds)


def verdict(sample: Sample) -> str | None:
    """ "ready", None while it is to be waited for, else what is wrong, to be put behind its name."""
    if sample.state in ("exited", "dead"):
        return f"ended with exit code {sample.exit_code}"
    if sample.state == "paused":
        return "is paused"
    if sample.restarts >= RESTARTS_UNTIL_FAILED:
        return f"ended and was restarted {sample.restarts} times"
    if sample.state != "running":
        return None
    if sample.health == "unhealthy":
        return "is unhealthy" if sample.failed_probes >= PROBES_UNTIL_UNHEALTHY else None
    if sample.health in (None, "none"):
        return "ready" if sample.up_seconds >= SETTLED_SECONDS else None
    return "ready" if sample.health == "healthy" else None
