"""What tests of the plan share: the declaration as it stands in the repository, and recorded boxes."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import frontdoor_plan as planner
import yaml

REPOSITORY = Path(__file__).parents[2]
BOXES = REPOSITORY / "tests" / "golden" / "boxes"
ROLES = REPOSITORY / "roles"

LAUNCHER = b"# the launcher, fixed for tests\n"

ROUTER_IMAGE = "vllm-frontdoor/router:0.1.0"
ENGINE_IMAGES = {
    "rehearsal": "vllm-frontdoor-engine-cpu:0.27.1",
    "gpu_boxes": "vllm/vllm-openai:v0.27.1",
}
BOX_OF_GROUP = {"rehearsal": "rehearsal", "gpu_boxes": "three_gpus"}


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    read = json.loads if path.suffix == ".json" else yaml.safe_load
    content: dict[str, Any] = read(path.read_text(encoding="utf-8")) or {}
    return content


def box(name: str) -> dict[str, Any]:
    """The recorded facts of a box."""
    return copy.deepcopy(_read(BOXES / f"{name}.json"))


@functools.cache
def known_variables() -> frozenset[str]:
    """The variables that the roles of the plan document."""
    names: set[str] = set()
    for path in ROLES.glob("*/meta/argument_specs.yml"):
        for entry in _read(path)["argument_specs"].values():
            names |= set(entry.get("options") or {})
    return frozenset(names)


def variables(group: str) -> dict[str, Any]:
    """What Ansible would see for a host of this group: role defaults, then group_vars; images made fixed."""
    found: dict[str, Any] = {}
    for path in [
        ROLES / "vllm_service" / "defaults" / "main.yml",
        ROLES / "router" / "defaults" / "main.yml",
        *sorted((REPOSITORY / "group_vars" / "all").glob("*.yml")),
        *sorted((REPOSITORY / "group_vars" / group).glob("*.yml")),
    ]:
        found |= copy.deepcopy(_read(path))
    return found | {
        "vllm_service_image": ENGINE_IMAGES[group],
        "vllm_service_docker_host": "unix:///var/run/docker.sock",
        "router_image": ROUTER_IMAGE,
    }


def with_service(raw: dict[str, Any], name: str, **settings: Any) -> dict[str, Any]:
    """The variables with some settings of one service changed, or a new service."""
    services = dict(raw["vllm_service_services"])
    return raw | {"vllm_service_services": services | {name: services.get(name, {}) | settings}}


def declared(raw: dict[str, Any]) -> planner.Declaration:
    """The declaration of these variables, with every documented name known."""
    return planner.parse(raw, known_variables())


def outcome(raw: dict[str, Any], facts: dict[str, Any]) -> planner.Plan | list[planner.Refusal]:
    """The plan, or all refusals: those of the declaration and those of the rules."""
    return planner.plan_declaration(
        declared(raw),
        planner.discovered_from_box(facts, is_root=True),
        planner.evidence_from_box(facts),
    )


def planned(raw: dict[str, Any], facts: dict[str, Any]) -> planner.Plan:
    """The plan, where there must be one."""
    found = outcome(raw, facts)
    assert isinstance(found, planner.Plan), planner.refusal_message(found, "")
    return found


def refusals(raw: dict[str, Any], facts: dict[str, Any]) -> list[planner.Refusal]:
    """The refusals, where there must be some."""
    found = outcome(raw, facts)
    assert isinstance(found, list), "it was planned"
    return found
