"""What the model folder's own config says against a wish."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Desired, Discovered, Refusal, Service

_OVERRIDES = ("--hf-overrides", "--hf-overrides.", "--rope-scaling", "--rope-parameters", "--hf-config-path")


def check(desired: Desired, discovered: Discovered) -> list[Refusal]:
    """Every refusal that the configs of models give; folders that aren't there are another rule's matter."""
    return [refusal for service in desired.services for refusal in _of_service(service, discovered)]


def _of_service(service: Service, discovered: Discovered) -> Iterator[Refusal]:
    facts = discovered.models.get(service.path)
    folder = discovered.paths.get(service.path)
    if facts is None or folder is None or not folder.is_directory or not folder.entries:
        return
    if facts.problem is not None:
        yield Refusal(
            where=f"{service.where}.model",
            what=f"The config of the model in {service.path} can't be read.",
            why=f"{facts.problem}. The engine reads it first.",
            remedy="Fetch the model anew: a damaged config.json rarely comes alone.",
        )
    elif not facts.config:
        yield Refusal(
            where=f"{service.where}.model",
            what=f"The model folder {service.path} of {service.name} has no config.json.",
            why="The engine reads the model's shape from it and would not start.",
            remedy="Point path to the folder that holds config.json itself (not the one above it), or fetch "
            "the model anew.",
        )
    yield from _context(service, facts.context_tokens)


def _context(service: Service, longest: int | None) -> Iterator[Refusal]:
    wish = service.max_model_len
    if wish is None or longest is None or wish <= longest or _overridden(service):
        return
    yield Refusal(
        where=f"{service.where}.max_model_len",
        what=f"{service.name} wants a context of {wish} tokens, and its model has {longest}.",
        why=f"Beyond what it was trained for a model answers nonsense, and vLLM doesn't start (read from "
        f"{service.path}/config.json).",
        remedy=f"Set max_model_len to at most {longest}, or leave it out. A model that can be stretched says "
        "so in its card: extra_args with --hf-overrides.",
    )


def _overridden(service: Service) -> bool:
    """Whether the arguments change what the config says: then the engine's own check has the word."""
    return any(
        argument.replace("_", "-").split("=")[0].split(".")[0] in _OVERRIDES
        for argument in service.extra_args
    )
