"""Parses the raw Ansible variables into `Desired`, and refuses by name what can't be understood."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from . import router_settings, spelling, values
from .instance import (
    DEFAULT_INSTANCE,
    FIRST_SLOT,
    INSTANCE_PATTERN,
    LAST_SLOT,
    MODELS_ROOT,
    SERVICE_PATTERN,
    SHARED_FOLDERS,
    Instance,
)
from .model import Desired, DeviceName, Refusal, RouterSettings, Service
from .parsing import Parsing, below, read_keys, refuse_unknown_keys
from .values import WrongValueError, shown

PREFIXES = (
    "bundle_",
    "calibration_",
    "container_engine_",
    "engine_image_",
    "model_files_",
    "gpu_diag_",
    "vllm_service_",
    "router_",
    "frontdoor_",
)
"""Variables that begin so belong to our roles: an unknown one is a mistake, not somebody else's. `frontdoor_`
is of no one role: several read what begins so, such as the instance."""

_NAME_RULE = "1 to 31 lower-case letters, digits and hyphens, beginning with no hyphen"
_INSTANCE_RULE = f"{_NAME_RULE}; not {', '.join(SHARED_FOLDERS[:-1])} or {SHARED_FOLDERS[-1]}"
_WEIGHT_VERDICTS = ("verified", "values_only", "structure_only", "unverified")
_SERVICES = "vllm_service_services"
_MEANT_FOR_SERVICES = 0.7
_MINUTES_OF_A_YEAR = 525_600
_SERVICES_ELSEWHERE = (
    "If you wrote it: services in group_vars/gpu_boxes/services.yml are those of machines in the group "
    "gpu_boxes, and group_vars belong beside the inventory: one in another folder needs its own, "
    "or a link to these."
)


def _allow_level_2(value: Any) -> str:
    """The router's word; true and false are what people write for always and never."""
    if isinstance(value, bool):
        return "always" if value else "never"
    return values.one_of("auto", "always", "never")(value)


def _device(value: Any) -> str:
    """The name of a device; a bare number means the GPU with that index."""
    text = values.word(value)
    return f"gpu{text}" if re.fullmatch(r"[0-9]{1,3}", text) else text


_MINUTES = values.whole_number(0, _MINUTES_OF_A_YEAR, "minutes (0: never)")

_SERVICE_READERS: Mapping[str, values.Reader[Any]] = {
    "slot": values.whole_number(FIRST_SLOT, LAST_SLOT),
    "model": values.word,
    "path": values.line,
    "aliases": values.list_of(values.word, single=True),
    "devices": values.list_of(_device, single=True),
    "task": values.one_of("generate", "embed", "rerank"),
    "memory_fraction": values.decimal_number("0", "1", "a fraction of the GPU's memory"),
    "kv_cache_memory_gib": values.decimal_number("0", "4096", "a number of GiB", "4"),
    "max_model_len": values.whole_number(1, 100_000_000, "tokens"),
    "tensor_parallel": values.whole_number(1, 64, "devices"),
    "pipeline_parallel": values.whole_number(1, 64, "devices"),
    "exclusive": values.boolean,
    "tool_call_parser": values.word,
    "reasoning_parser": values.word,
    "quantization": values.word,
    "trust_remote_code": values.boolean,
    "extra_args": values.list_of(values.line),
    "idle_sleep_minutes": _MINUTES,
    "idle_offload_minutes": _MINUTES,
    "pin": values.boolean,
    "allow_level_2": _allow_level_2,
    "debug_port": values.boolean,
}
SERVICE_KEYS = (*_SERVICE_READERS, "environment")
_REQUIRED_SERVICE_KEYS = ("slot", "model", "devices")

_DEVICE_READERS: Mapping[str, values.Reader[Any]] = {
    "uuid": values.matching(re.compile(r"GPU-[0-9A-Za-z-]{1,60}"), "a UUID as nvidia-smi -L prints it"),
    "pci_address": values.matching(
        re.compile(r"([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"),
        "a PCI address such as 0000:3d:00.0",
    ),
    "index": values.whole_number(0, 255),
    "cores": values.cores,
}

_ROUTER_READERS: Mapping[str, values.Reader[Any]] = {
    "image": values.word,
    "public_address": values.ip_address,
    "idle_sleep_minutes": _MINUTES,
    "idle_offload_minutes": _MINUTES,
    "hold_max_seconds": values.whole_number(1, 86_400, "seconds"),
    "uid": values.whole_number(1, 4_294_967_294),
    "gid": values.whole_number(1, 4_294_967_294),
}


READ_VARIABLES = frozenset(
    {
        "frontdoor_instance",
        "frontdoor_network",
        "frontdoor_port_base",
        "gpu_diag_allow_p2p",
        "gpu_diag_cpu_devices",
        "gpu_diag_probes",
        "model_files_packages",
        "vllm_service_cpu_kv_cache_gib",
        "vllm_service_devices",
        "vllm_service_docker_host",
        "vllm_service_drain_seconds",
        "vllm_service_environment",
        "vllm_service_healthy_timeout_seconds",
        "vllm_service_host_memory_limit",
        "vllm_service_image",
        "vllm_service_memory_limit",
        "vllm_service_models_root",
        "vllm_service_prove_timeout_seconds",
        "vllm_service_services",
        "vllm_service_weights_required",
        *(f"router_{key}" for key in _ROUTER_READERS),
        *(f"router_{setting.key}" for setting in router_settings.SETTINGS),
        *(f"router_{key}" for key in router_settings.SECRET_KEYS),
    }
)
"""The variables whose values the plan reads; of all others only the names count."""


@dataclass(frozen=True)
class Declaration:
    """What could be understood of the variables, and refusals for what could not.

    With refusals, `desired` holds as much as was understood, so that the rules can still say what else is
    wrong; it must not be deployed.
    """

    desired: Desired
    refusals: tuple[Refusal, ...]


def parse(raw: Mapping[str, Any], known: Collection[str], others: Collection[str] = ()) -> Declaration:
    """Desired state from raw variables.

    `raw` holds every variable with one of PREFIXES (of those outside READ_VARIABLES only the names count);
    `known` holds all names that the roles' argument specifications document; `others` those of variables
    that begin like none of ours, among which may be what somebody meant for the services.
    """
    parsing = Parsing()
    _refuse_unknown_variables(parsing, raw, known)
    models_root = parsing.optional(raw, "vllm_service_models_root", _absolute_path, MODELS_ROOT)
    device_names = _device_names(parsing, raw.get("vllm_service_devices"))
    desired = Desired(
        instance=_instance(parsing, raw),
        image=parsing.optional(raw, "vllm_service_image", values.word, ""),
        router=_router(parsing, raw),
        services=_services(parsing, raw, models_root, others),
        models_root=models_root,
        device_names=device_names,
        unread_devices=_unread_devices(raw.get("vllm_service_devices"), device_names),
        environment=_environment(parsing, "vllm_service_environment", raw.get("vllm_service_environment")),
        memory_limit=parsing.optional(
            raw,
            "vllm_service_memory_limit",
            values.decimal_number("0", "1", "a fraction", "0.88"),
            Decimal("0.88"),
        ),
        host_memory_limit=parsing.optional(
            raw,
            "vllm_service_host_memory_limit",
            values.decimal_number("0", "1", "a fraction", "0.9"),
            Decimal("0.9"),
        ),
        allow_p2p=parsing.optional(raw, "gpu_diag_allow_p2p", values.boolean, False),
        probes=parsing.optional(
            raw,
            "gpu_diag_probes",
            values.list_of(values.one_of("host", "integrity", "control", "p2p")),
            (),
        ),
        cpu_shares=parsing.optional(raw, "gpu_diag_cpu_devices", values.whole_number(0, 64), 0),
        weights_required=parsing.optional(
            raw,
            "vllm_service_weights_required",
            _verdicts,
            ("verified", "values_only"),
        ),
        cpu_kv_cache_gib=parsing.optional(
            raw, "vllm_service_cpu_kv_cache_gib", values.whole_number(1, 4096, "GiB"), 1
        ),
        fetched_models=_fetched_models(raw, models_root),
        docker_host=parsing.optional(
            raw, "vllm_service_docker_host", values.word, "unix:///var/run/docker.sock"
        ),
        healthy_timeout_seconds=parsing.optional(
            raw,
            "vllm_service_healthy_timeout_seconds",
            values.whole_number(1, 86_400, "seconds"),
            900,
        ),
        drain_seconds=parsing.optional(
            raw, "vllm_service_drain_seconds", values.whole_number(0, 86_400, "seconds"), 120
        ),
        prove_timeout_seconds=parsing.optional(
            raw, "vllm_service_prove_timeout_seconds", values.whole_number(1, 86_400, "seconds"), 900
        ),
    )
    return Declaration(desired, tuple(parsing.refusals))


def _fetched_models(raw: Mapping[str, Any], models_root: str) -> frozenset[str]:
    """Folders of the models that model_files fetches; what is wrong with its packages, it says itself."""
    packages = raw.get("model_files_packages")
    entries = packages if isinstance(packages, list) else []
    names = (entry.get("name") for entry in entries if isinstance(entry, Mapping))
    return frozenset(posixpath.join(models_root, name) for name in names if isinstance(name, str))


def _absolute_path(value: Any) -> str:
    path = values.line(value)
    if not path.startswith("/") or ".." in path.split("/") or posixpath.normpath(path) in ("/", "//"):
        raise WrongValueError("It is no absolute path of a folder.", "Write a path such as /srv/models.")
    return posixpath.normpath(path)


def _verdicts(value: Any) -> tuple[str, ...]:
    verdicts = values.list_of(values.one_of(*_WEIGHT_VERDICTS), single=True)(value)
    if not verdicts:
        raise WrongValueError("An empty list would accept nothing.", "Write [verified, values_only].")
    return verdicts


def _refuse_unknown_variables(parsing: Parsing, raw: Mapping[str, Any], known: Collection[str]) -> None:
    for name in sorted(raw):
        if name.startswith(PREFIXES) and name not in known:
            parsing.refuse(
                name,
                f"There is no variable {name}.",
                "It begins like the variables of a vllm-frontdoor role, and no role reads it.",
                spelling.remedy(name, known),
            )


def _instance(parsing: Parsing, raw: Mapping[str, Any]) -> Instance:
    name = parsing.optional(
        raw, "frontdoor_instance", values.matching(INSTANCE_PATTERN, _INSTANCE_RULE), DEFAULT_INSTANCE
    )
    derived = Instance.derive(name)
    return Instance(
        name=name,
        network=parsing.optional(raw, "frontdoor_network", values.ipv4_network(8, 21), derived.network),
        port_base=parsing.optional(
            raw, "frontdoor_port_base", values.whole_number(1024, 65_400), derived.port_base
        ),
    )


def _router(parsing: Parsing, raw: Mapping[str, Any]) -> RouterSettings:
    settings: dict[str, Any] = {"image": ""}
    for key, read in _ROUTER_READERS.items():
        name = f"router_{key}"
        if raw.get(name) is not None:
            found = parsing.take(name, raw[name], read)
            settings |= {} if found is None else {key: found}
    further = _router_environment(parsing, raw)
    return RouterSettings(**settings, settings=further, secrets=_router_secrets(parsing, raw))


def _router_environment(parsing: Parsing, raw: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for setting in router_settings.SETTINGS:
        value = raw.get(f"router_{setting.key}")
        if value is None or value in ("", []):
            continue
        text = parsing.take(f"router_{setting.key}", value, setting.read)
        if text is not None:
            found[setting.environment] = text
    return found


def _router_secrets(parsing: Parsing, raw: Mapping[str, Any]) -> router_settings.Secrets:
    found: dict[str, Any] = {}
    for key, read in router_settings.SECRET_READERS.items():
        if raw.get(f"router_{key}") is not None:
            value = parsing.take(f"router_{key}", raw[f"router_{key}"], read, secret=True)
            found |= {} if value is None else {key: value}
    secrets = router_settings.Secrets(**found)
    if bool(secrets.tls_certificate) != bool(secrets.tls_key):
        given, missing = ("certificate", "key") if secrets.tls_certificate else ("key", "certificate")
        parsing.refuse(
            f"router_tls_{missing}",
            f"router_tls_{given} is set and router_tls_{missing} isn't.",
            "TLS needs both.",
            f"Set router_tls_{missing} too, or remove router_tls_{given}.",
        )
    return secrets


def _services(
    parsing: Parsing, variables: Mapping[str, Any], models_root: str, others: Collection[str]
) -> tuple[Service, ...]:
    raw = variables.get("vllm_service_services")
    example = _example(raw, variables.get("vllm_service_devices"))
    if not isinstance(raw, Mapping) or not raw:
        meant = None if raw else spelling.nearest(_SERVICES, others, likeness=_MEANT_FOR_SERVICES)
        guess = f"{meant} is set; did you mean {_SERVICES}? " if meant else ""
        parsing.refuse(
            _SERVICES,
            f"{_SERVICES} is {values.kind_of(raw) if raw else 'empty'}; needed is a mapping of services.",
            "A front door without a service answers nothing.",
            f"{guess}Write {_SERVICES}: {{text: {example}}}.{'' if raw else f' {_SERVICES_ELSEWHERE}'}",
        )
        return ()
    stray = _refuse_stray_settings(parsing, raw)
    wishes = {name: wish for name, wish in raw.items() if name not in stray and (wish or not stray)}
    found = (_service(parsing, name, wish, models_root, example) for name, wish in wishes.items())
    services = sorted((service for service in found if service), key=lambda service: service.name)
    return tuple(services)


def _refuse_stray_settings(parsing: Parsing, raw: Mapping[Any, Any]) -> list[str]:
    """Settings where services' names belong, since they aren't indented: one slip, told once."""
    stray = [name for name, wish in raw.items() if name in SERVICE_KEYS and _is_setting(name, wish)]
    if stray:
        bare = [name if isinstance(name, str) else shown(name) for name, wish in raw.items() if not wish]
        beside = " and ".join(name for name in bare if name not in stray)
        listed = ", ".join(stray)
        parsing.refuse(
            _SERVICES,
            f"{listed} {'stands' if len(stray) == 1 else 'stand'} beside {beside or 'the services'}.",
            "What a service is set to stands below its name; beside it, it would be a service itself.",
            f"Indent {listed} below {beside or 'the service that is meant'}.",
        )
    return stray


def _is_setting(name: str, wish: Any) -> bool:
    """A service may be named like a setting; then it is a mapping of settings itself."""
    if isinstance(wish, Mapping):
        return name == "environment" and not any(key in SERVICE_KEYS for key in wish)
    return wish is not None


def _example(services: Any, devices: Any) -> str:
    """A service as it may be written here: with a free slot, on a device that there may be."""
    named = devices if isinstance(devices, Mapping) else {}
    on_cores = (name for name, wish in named.items() if isinstance(wish, Mapping) and wish.get("cores"))
    cores = next((name for name in on_cores if isinstance(name, str)), None)
    place = "devices: [gpu0], memory_fraction: 0.5" if cores is None else f"devices: [{cores}]"
    return f"{{slot: {_free_slot(services)}, model: NAME, {place}}}"


def _free_slot(services: Any) -> int:
    wishes = services.values() if isinstance(services, Mapping) else ()
    taken = {shown(wish.get("slot")).strip(" '\"") for wish in wishes if isinstance(wish, Mapping)}
    free = (slot for slot in range(FIRST_SLOT, LAST_SLOT + 1) if str(slot) not in taken)
    return next(free, FIRST_SLOT)


def _service(parsing: Parsing, raw_name: Any, wish: Any, models_root: str, example: str) -> Service | None:
    where = below(_SERVICES, raw_name)
    name = parsing.take(where, raw_name, values.matching(SERVICE_PATTERN, _NAME_RULE))
    if not isinstance(wish, Mapping):
        parsing.refuse(
            where,
            f"{where} is {values.kind_of(wish)}; needed is a mapping.",
            "A service has at least a slot, a model and devices, and on GPUs a share of their memory.",
            f"Write {where}: {example}.",
        )
        return None
    refuse_unknown_keys(parsing, where, wish, SERVICE_KEYS)
    found = read_keys(parsing, where, wish, _SERVICE_READERS)
    environment = _environment(parsing, f"{where}.environment", wish.get("environment"))
    _refuse_missing_keys(parsing, where, wish)
    if name is None or not all(key in found for key in _REQUIRED_SERVICE_KEYS):
        return None
    derived = {"name": name, "path": _model_path(found, models_root), "environment": environment}
    return Service(**{**found, **derived})


def _environment(parsing: Parsing, where: str, raw: Any) -> dict[str, str]:
    """Environment variables: names to texts. Values stay out of messages."""
    wish = None if raw is None else parsing.take(where, raw, values.mapping, secret=True)
    found: dict[str, str] = {}
    for raw_name, raw_value in (wish or {}).items():
        name = parsing.take(where, raw_name, values.environment_name)
        value = parsing.take(below(where, raw_name), raw_value, values.environment_value, secret=True)
        if name is not None and value is not None:
            found[name] = value
    return found


def _model_path(found: Mapping[str, Any], models_root: str) -> str:
    """Where the model lies. A path that isn't absolute is taken from the models' root."""
    path = posixpath.join(models_root, str(found.get("path", found["model"])))
    return path.rstrip("/") or "/"


def _refuse_missing_keys(parsing: Parsing, where: str, wish: Mapping[Any, Any]) -> None:
    why = {
        "slot": "The slot fixes a service's addresses and ports, so that they stay when others come and go.",
        "model": "The model is what the engine serves.",
        "devices": "A service has to know where it runs.",
    }
    remedy = {
        "slot": f"Add slot: a number from {FIRST_SLOT} to {LAST_SLOT} that no other service has.",
        "model": "Add model: the name of the model's folder.",
        "devices": "Add devices: [gpu0].",
    }
    for key in _REQUIRED_SERVICE_KEYS:
        if wish.get(key) is None:
            parsing.refuse(where, f"{where} has no {key}.", why[key], remedy[key])


def _device_names(parsing: Parsing, raw: Any) -> tuple[DeviceName, ...]:
    where = "vllm_service_devices"
    if raw is None:
        return ()
    if not isinstance(raw, Mapping):
        parsing.refuse(
            where,
            f"{where} is {values.kind_of(raw)}; needed is a mapping of names to devices.",
            "Each device gets a name, and what it is.",
            f'Write {where}: {{left: {{cores: "0"}}}} or {{front: {{pci_address: "0000:3d:00.0"}}}}.',
        )
        return ()
    found = (_device_name(parsing, name, wish) for name, wish in raw.items())
    return tuple(sorted((device for device in found if device), key=lambda device: device.name))


def _unread_devices(raw: Any, read: tuple[DeviceName, ...]) -> frozenset[str]:
    """Names of devices whose declaration could not be understood."""
    names = raw if isinstance(raw, Mapping) else {}
    return frozenset(name for name in names if isinstance(name, str)) - {device.name for device in read}


def _device_name(parsing: Parsing, raw_name: Any, wish: Any) -> DeviceName | None:
    where = below("vllm_service_devices", raw_name)
    name = parsing.take(where, raw_name, values.matching(SERVICE_PATTERN, _NAME_RULE))
    if not isinstance(wish, Mapping):
        parsing.refuse(
            where,
            f"{where} is {values.kind_of(wish)}; needed is a mapping.",
            "A device is named by exactly one of uuid, pci_address, index (GPUs) or cores (CPU).",
            f'Write {where}: {{cores: "0"}}.',
        )
        return None
    refuse_unknown_keys(parsing, where, wish, tuple(_DEVICE_READERS))
    found = read_keys(parsing, where, wish, _DEVICE_READERS)
    given = [key for key in _DEVICE_READERS if wish.get(key) is not None]
    if not given and wish.keys() - _DEVICE_READERS.keys():
        return None  # what it was meant to be is named by a key that was refused
    if len(given) != 1:
        parsing.refuse(
            where,
            f"{where} does not name exactly one thing.",
            "A device is named by exactly one of uuid, pci_address, index (GPUs) or cores (CPU).",
            "Keep one of them.",
        )
        return None
    return DeviceName(name=name, **found) if name and found else None
