"""Images as a chain of layers named by what went into them (pure)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Part of every name: raise it when layers are made differently from the same input.
RECIPE_VERSION = 1
_KEY_LENGTH = 12
BASE_REPOSITORY = "vllm-frontdoor/base"
CONTENT_LABEL = "vllm-frontdoor.content"


@dataclass(frozen=True)
class Step:
    """One image of a chain: what it is called, what it stands on, and where its input is described.

    `position` is the layer's place in the recipe; None is the base.
    """

    reference: str
    parent: str
    position: int | None
    kind: str

    def document(self) -> dict[str, Any]:
        """The step as data."""
        return asdict(self)


def _key(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def chain(
    base: Mapping[str, Any],
    layers: Sequence[Mapping[str, Any]],
    inputs: Sequence[Mapping[str, Any]],
    script: str,
) -> list[Step]:
    """Name every image of a recipe by what goes into it, from the base upwards.

    `inputs` holds for each layer the digests of its lock and of its copied trees; `script` is the content of
    the program that fills a layer. A base with an ``image`` is pulled and keeps its own name.
    """
    if base.get("image"):
        key = _key({"image": base["image"], "recipe": RECIPE_VERSION})
        steps = [Step(str(base["image"]), "", None, "pulled")]
    else:
        key = _key({"suite": base["suite"], "packages": sorted(base["packages"]), "recipe": RECIPE_VERSION})
        steps = [Step(f"{BASE_REPOSITORY}:{key[:_KEY_LENGTH]}", "", None, "bootstrapped")]
    script_digest = hashlib.sha256(script.encode()).hexdigest()
    for position, (layer, digests) in enumerate(zip(layers, inputs, strict=True)):
        key = _key(
            {"on": key, "configuration": _configuration(layer), "inputs": digests, "script": script_digest}
        )
        steps.append(
            Step(f"{layer['repository']}:{key[:_KEY_LENGTH]}", steps[-1].reference, position, "layer")
        )
    return steps


def _configuration(layer: Mapping[str, Any]) -> dict[str, Any]:
    """What of a layer's description shapes the image; where its input lies on the controller does not."""
    destinations = [each["dest"] for each in layer.get("files") or []]
    return {"commit": commit_changes(layer, ""), "python": layer.get("python"), "files_to": destinations}


def to_build(steps: Sequence[Step], present: Collection[str]) -> list[Step]:
    """The steps to make, lowest first: those above the highest image that is there."""
    needed: list[Step] = []
    for step in reversed(steps):
        if step.reference in present:
            break
        needed.append(step)
    return needed[::-1]


def commit_changes(layer: Mapping[str, Any], key: str) -> list[str]:
    """Instructions for ``docker commit --change``.

    Command and user are always set: a commit takes over those of the container that filled the layer. That
    one has no entry point, and an empty one could not be set here.
    """
    labels = {**(layer.get("labels") or {}), CONTENT_LABEL: key}
    changes = [f"LABEL {name}={_quoted(value)}" for name, value in sorted(labels.items())]
    changes += [
        f"ENV {name}={_quoted(value)}" for name, value in sorted((layer.get("environment") or {}).items())
    ]
    changes.append(f"USER {layer.get('user') or '0'}")
    if layer.get("workdir"):
        changes.append(f"WORKDIR {layer['workdir']}")
    if layer.get("entrypoint"):
        changes.append(f"ENTRYPOINT {json.dumps(list(layer['entrypoint']))}")
    changes.append(f"CMD {json.dumps(list(layer.get('cmd') or ['python3']))}")
    return changes


def _quoted(value: object) -> str:
    """A value in double quotes, as the Dockerfile reads it: a dollar sign would start a variable."""
    return json.dumps(str(value)).replace("$", "\\$")
