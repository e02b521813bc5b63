"""Arguments and environment by hand: they may add, and not contradict what the plan owns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..engine import OWNED_ENVIRONMENT, OWNED_FLAGS, STAGED_PATH_ENVIRONMENT
from ..model import Desired, Refusal, Service

_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_SHORT_FLAG = re.compile(r"(-[a-z]+?)[0-9]*")
_SHORTEST_ABBREVIATION = len("--xx")


def check(desired: Desired) -> list[Refusal]:
    """Every refusal that arguments and environment variables give."""
    return [
        *_environment("vllm_service_environment", desired.environment),
        *(
            refusal
            for service in desired.services
            for refusal in [
                *_environment(f"{service.where}.environment", service.environment),
                *_arguments(service),
                *_parsers(service),
            ]
        ),
    ]


def _environment(where: str, environment: Mapping[str, str]) -> Iterator[Refusal]:
    for name, value in sorted(environment.items()):
        if name.upper().startswith("NCCL_P2P_"):
            yield from _peer_to_peer(where, name, value)
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


def _peer_to_peer(where: str, name: str, value: str) -> Iterator[Refusal]:
    if name == "NCCL_P2P_DISABLE" and value.strip() == "1":
        return
    yield Refusal(
        where=f"{where}.{name}",
        what=f"{name} is set to {value!r} by hand.",
        why="Peer-to-peer is off for every service, since a corrupt path answers with garbage; "
        "NCCL reads an integer here and ignores anything else without a word.",
        remedy="Remove it, or write NCCL_P2P_DISABLE: 1 (the digit), which is what is rendered anyway.",
    )


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
