"""Arguments and environment by hand: they may add, and not contradict what the plan owns."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from ..engine import OWNED_ENVIRONMENT, OWNED_FLAGS, STAGED_PATH_ENVIRONMENT
from ..flag_table import flags_of
from ..instance import LABEL_VLLM
from ..model import Desired, Discovered, Refusal, Service

_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SHORT_FLAG = re.compile(r"(-[a-z]+?)[0-9]*")
_SHORTEST_ABBREVIATION = len("--xx")


def check(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that arguments and environment variables give."""
    version = vllm_version(desired, discovered)
    return [
        *_environment("vllm_service_environment", desired.environment),
        *(
            refusal
            for service in desired.services
            for refusal in [
                *_environment(f"{service.where}.environment", service.environment),
                *_arguments(service),
                *_unknown(service, version),
                *_parsers(service),
            ]
        ),
    ]


def vllm_version(desired: Desired, discovered: Discovered) -> str | None:
    """The version that the image says it holds: by its label, or by the tag that its publisher gave it."""
    image = discovered.images.get(desired.image)
    if image is not None and LABEL_VLLM in image.labels:
        return image.labels[LABEL_VLLM]
    tag = re.fullmatch(r".*:v?([0-9]+\.[0-9]+\.[0-9]+)", desired.image)
    return tag[1] if tag else None


def _environment(where: str, environment: Mapping[str, str]) -> Iterator[Refusal]:
    for name, value in sorted(environment.items()):
        if name.upper().startswith("NCCL_"):
            yield from _nccl(where, name, value)
        elif name in OWNED_ENVIRONMENT and value != STAGED_PATH_ENVIRONMENT.get(name):
            yield Refusal(
                where=f"{where}.{name}",
                what=f"{name} can't be set by hand.",
                why=f"It is owned by the plan: {OWNED_ENVIRONMENT[name]}.",
                remedy=f"Remove {name}.",
            )
        elif name in _ALLOCATOR_VARIABLES and "expandable_segments" in value.replace(" ", "").lower():
            yield Refusal(
                where=f"{where}.{name}",
                what=f"{name} sets expandable_segments.",
                why="With it, sleeping freed no memory in some vLLM versions.",
                remedy="Remove expandable_segments.",
            )


def _nccl(where: str, name: str, value: str) -> Iterator[Refusal]:
    """Settings of NCCL that contradict the plan's choice of the path between GPUs."""
    if name.upper().startswith("NCCL_P2P_"):
        if name == "NCCL_P2P_DISABLE" and value.strip() == "1":
            return
        why = (
            "Peer-to-peer is off unless evidence earned it, since a corrupt path answers with garbage; "
            "NCCL reads an integer here and ignores anything else without a word."
        )
        remedy = (
            "Remove it, or write NCCL_P2P_DISABLE: 1 (the digit), which is what is rendered anyway. To use "
            "peer-to-peer where it is proven, set gpu_diag_allow_p2p: true."
        )
    else:
        found = next(
            (why for pattern, why in _CONTRADICTING_NCCL.items() if _sets(pattern, name, value)), None
        )
        if found is None and _silences(name, value):
            found = _SILENCED
        if found is None:
            return
        why, remedy = found, f"Remove {name}."
    yield Refusal(
        where=f"{where}.{name}", what=f"{name} is set to {value!r} by hand.", why=why, remedy=remedy
    )


_CONTRADICTING_NCCL: Mapping[str, str] = {
    "NCCL_SHM_DISABLE": "The staged path goes through shared memory; without it NCCL takes the network.",
    "NCCL_NVLS_ENABLE": "It lets GPUs write into each other's memory, which no probe has allowed.",
    "NCCL_MNNVL_ENABLE": "It lets GPUs write into each other's memory, which no probe has allowed.",
    "NCCL_NET_GDR_LEVEL": "It lets network cards write into the GPUs' memory, a path that no probe tests.",
    "NCCL_NET_GDR_READ": "It lets network cards read from the GPUs' memory, a path that no probe tests.",
    "NCCL_CONF_FILE": "A file could set anything, also the path between GPUs.",
    "NCCL_TOPO_FILE": "A file that tells NCCL another topology makes it choose paths that nobody tested.",
}


_SILENCED = (
    "Which way NCCL really takes between the GPUs of a split model is read from the engine's log; this would "
    "keep it out of there. NCCL_DEBUG may be INFO or TRACE, NCCL_DEBUG_SUBSYS has to hold INIT or ALL."
)


def _silences(name: str, value: str) -> bool:
    """Whether a setting keeps the lines about transports out of the container's log."""
    words = value.strip().upper()
    if name.upper() == "NCCL_DEBUG":
        return words not in ("INFO", "TRACE")
    if name.upper() == "NCCL_DEBUG_SUBSYS":
        # Before the list, ^ takes away what it names.
        return words.startswith("^") or not {"INIT", "ALL"} & set(words.split(","))
    return name.upper() == "NCCL_DEBUG_FILE" and bool(words)


def _sets(pattern: str, name: str, value: str) -> bool:
    """Whether a variable is the one of a pattern, and not switched off."""
    return name.upper() == pattern and value.strip() != "0"


def _arguments(service: Service) -> Iterator[Refusal]:
    where = f"{service.where}.extra_args"
    for position, argument in enumerate(service.extra_args):
        flag, instead = _owner(argument)
        if instead:
            yield Refusal(
                where=where,
                what=f"extra_args of {service.name} sets {_spelled(flag, argument)}.",
                why=f"The flag is owned by the plan: {instead}.",
                remedy=f"Remove it from extra_args; {instead}.",
            )
        if argument.startswith("-") and re.match(r"-\S+\s", argument):
            yield Refusal(
                where=where,
                what=f"extra_args of {service.name} holds {argument!r} as one argument.",
                why="A list item is one argument, and no shell splits it.",
                remedy="Write flag and value as two items, or with an equals sign: --flag=value.",
            )
        if position == 0 and not argument.startswith("-"):
            yield Refusal(
                where=where,
                what=f"extra_args of {service.name} begins with {argument!r}, which is no flag.",
                why="The engine takes no argument without a flag.",
                remedy="Begin with a flag: [--flag, value].",
            )


def _unknown(service: Service, version: str | None) -> Iterator[Refusal]:
    """Flags that this version of vLLM doesn't know, where the table has it; the image's parser has the last
    word."""
    flags = flags_of(version)
    if flags is None:
        return
    for argument in service.extra_args:
        flag = re.split(r"[=\s]", argument, maxsplit=1)[0]
        if not flag.startswith("--") or flag == "--":
            continue
        name = flag.replace("_", "-").split(".")[0]
        if not any(known.startswith(name) for known in flags) and not _owner(argument)[1]:
            near = difflib.get_close_matches(name, sorted(flags), n=1)
            yield Refusal(
                where=f"{service.where}.extra_args",
                what=f"vLLM {version} has no flag {flag}.",
                why="An unknown flag keeps the engine from starting.",
                remedy=f"Did you mean {near[0]}?" if near else "Remove it, or use an image that knows it.",
            )


def _spelled(flag: str, argument: str) -> str:
    return flag if flag == argument else f"{flag} ({argument})"


def _owner(argument: str) -> tuple[str, str | None]:
    """The flag that an argument sets, in any spelling that vLLM takes, and what to use where it is owned.

    It takes underscores for hyphens, --no- forms, unambiguous abbreviations, and short flags with their
    value attached (vLLM 0.27.1 and 0.32.0).
    """
    name = re.split(r"[=\s]", argument, maxsplit=1)[0]
    if name.startswith("--"):
        name = re.sub(r"^--no-", "--", name.replace("_", "-").lower()).split(".")[0]
        if name == "--":
            return name, "a bare -- ends the options"
        owned = sorted(flag for flag in OWNED_FLAGS if flag == name) or sorted(
            flag for flag in OWNED_FLAGS if len(name) >= _SHORTEST_ABBREVIATION and flag.startswith(name)
        )
        return (owned[0], OWNED_FLAGS[owned[0]]) if owned else (name, None)
    short = _SHORT_FLAG.fullmatch(name)
    return (short[1], OWNED_FLAGS.get(short[1])) if short else (name, None)


def _parsers(service: Service) -> Iterator[Refusal]:
    for key, value in (
        ("tool_call_parser", service.tool_call_parser),
        ("reasoning_parser", service.reasoning_parser),
        ("quantization", service.quantization),
    ):
        if value is not None and value.startswith("-"):
            yield Refusal(
                where=f"{service.where}.{key}",
                what=f"{key} of {service.name} is {value!r}.",
                why="The engine would take it for a flag.",
                remedy=f"Write the name of a {key.replace('_', ' ')}.",
            )
        if value is not None and key == "tool_call_parser" and service.task != "generate":
            yield Refusal(
                where=f"{service.where}.{key}",
                what=f"{service.name} has a tool_call_parser and the task {service.task}.",
                why="Only generated text holds tool calls.",
                remedy="Remove tool_call_parser, or set task: generate.",
            )
