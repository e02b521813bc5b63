"""What of a plan is kept as a release, and how a release becomes a declaration again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .declaration import READ_VARIABLES
from .instance import LABEL_DEFINITION
from .model import Image, Plan
from .render import Rendering
from .router_settings import SECRET_KEYS

KEYS_AND_CERTIFICATES = frozenset(f"router_{key}" for key in SECRET_KEYS)
"""Never kept and never rolled back: a key that was revoked stays revoked."""

_OF_THE_BOX = frozenset({"frontdoor_instance", "vllm_service_docker_host"})
"""Where a release lies, and not what it deploys."""

_IMAGE_VARIABLES = {"engine": "vllm_service_image", "router": "router_image"}


def release_content(raw: Mapping[str, Any], plan: Plan, rendering: Rendering) -> dict[str, Any]:
    """What a release keeps of this plan, in the form of the module vllm_service_releases."""
    kept = READ_VARIABLES - KEYS_AND_CERTIFICATES
    return {
        "variables": {name: raw[name] for name in sorted(kept) if raw.get(name) is not None},
        "images": {"engine": _image(plan.engine_image), "router": _image(plan.router_image)},
        "services": {
            name: service["labels"][LABEL_DEFINITION]
            for name, service in rendering.engines.definition["services"].items()
        },
    }


def _image(image: Image) -> dict[str, str]:
    return {"reference": image.reference, "id": image.id}


def release_files(rendering: Rendering) -> dict[str, str]:
    """The rendered files that a release keeps for people to read."""
    kept = (path for path in rendering.files if not path.startswith("secrets/"))
    return {path: rendering.files[path].decode("utf-8") for path in kept}


def declaration_of_release(
    variables: Mapping[str, Any], images: Mapping[str, Mapping[str, str]], now: Mapping[str, Any]
) -> dict[str, Any]:
    """The raw variables that a release is planned from: its own, its images by id, the rest from `now`."""
    by_id = {_IMAGE_VARIABLES[use]: image["id"] for use, image in images.items()}
    today = {name: now[name] for name in KEYS_AND_CERTIFICATES | _OF_THE_BOX if name in now}
    return {**variables, **by_id, **today}
