"""What holds for any declaration, however wrong."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
import yaml
from frontdoor_plan import Plan, Refusal, plan_table, refusal_message, render
from frontdoor_plan.declaration import SERVICE_KEYS
from frontdoor_plan.document import to_yaml
from frontdoor_plan.instance import LABEL_DEFINITION
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_support import LAUNCHER, box, known_variables, outcome, variables, with_service

_BOXES = {"gpu_boxes": box("three_gpus"), "rehearsal": box("rehearsal")}
_RAW = {group: variables(group) for group in _BOXES}

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["gpu0", "gpu2", "left", "true", "0", "0.5", "embed", "/srv/x", "10.0.0.0/16"])
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SCALARS, inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(SERVICE_KEYS) | _SCALARS
_SERVICES = st.dictionaries(
    st.sampled_from(["text", "ocr", "embed", "x", "Y", "router"]) | _SCALARS,
    st.dictionaries(_KEYS, _ANYTHING, max_size=5) | _ANYTHING,
    max_size=3,
)
_DEVICES = st.dictionaries(
    st.sampled_from(["left", "right", "gpu0"]) | _SCALARS,
    st.dictionaries(
        st.sampled_from(["cores", "uuid", "index", "pci_address"]) | _SCALARS, _ANYTHING, max_size=2
    )
    | _ANYTHING,
    max_size=3,
)
_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "vllm_service_services": _SERVICES | _ANYTHING,
        "vllm_service_devices": _DEVICES | _ANYTHING,
        "vllm_service_environment": st.dictionaries(_SCALARS, _ANYTHING, max_size=3) | _ANYTHING,
        **{
            name: _ANYTHING
            for name in sorted(known_variables())
            if name not in ("vllm_service_services", "vllm_service_devices", "vllm_service_environment")
        },
    },
)


@settings(max_examples=150, deadline=None)
@given(group=st.sampled_from(sorted(_BOXES)), changes=_CHANGES)
def test_any_declaration_either_plans_or_refuses(group: str, changes: dict[str, Any]) -> None:
    found = outcome(_RAW[group] | changes, _BOXES[group])
    if isinstance(found, Plan):
        assert render(found, LAUNCHER).files
        assert plan_table(found)
    else:
        assert found
        assert all(isinstance(refusal, Refusal) for refusal in found)
        assert refusal_message(found, "").startswith("There is no plan")


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(["text", "ocr", "embed"]),
    settings_=st.dictionaries(st.sampled_from(SERVICE_KEYS), _ANYTHING, min_size=1, max_size=3),
)
def test_any_setting_of_a_service_either_plans_or_refuses_that_service(
    name: str, settings_: dict[str, Any]
) -> None:
    found = outcome(with_service(_RAW["gpu_boxes"], name, **settings_), _BOXES["gpu_boxes"])
    assert isinstance(found, Plan) or any(name in refusal.where for refusal in found)


@st.composite
def _fleets(draw: st.DrawFn) -> dict[str, Any]:
    """Some services on three GPUs with unique names; slots, fractions and devices may clash."""
    names = draw(st.lists(st.sampled_from([f"s{number}" for number in range(8)]), min_size=1, unique=True))
    services = {
        name: {
            "slot": draw(st.integers(1, 99)),
            "model": f"model-{name}",
            "path": "OvisOCR2",
            "devices": [draw(st.sampled_from(["gpu0", "gpu1", "gpu2"]))],
            "memory_fraction": draw(st.integers(1, 60)) / 100,
            "exclusive": draw(st.booleans()),
            "debug_port": draw(st.booleans()),
        }
        for name in names
    }
    return _RAW["gpu_boxes"] | {"vllm_service_services": services}


@settings(max_examples=150, deadline=None)
@given(raw=_fleets())
def test_no_plan_breaks_a_limit(raw: dict[str, Any]) -> None:
    found = outcome(raw, _BOXES["gpu_boxes"])
    if not isinstance(found, Plan):
        return
    fractions: dict[str, Decimal] = defaultdict(Decimal)
    users: dict[str, list[bool]] = defaultdict(list)
    for placement in found.placements:
        for device in placement.devices:
            fractions[device.key] += placement.service.memory_fraction or 0
            users[device.key].append(placement.service.exclusive)
    assert all(total <= Decimal("0.88") for total in fractions.values())
    assert all(len(exclusive) == 1 or not any(exclusive) for exclusive in users.values())
    slots = [placement.service.slot for placement in found.placements]
    addresses = {found.instance.engine_address(slot) for slot in slots}
    ports = {found.instance.debug_port(slot) for slot in slots}
    assert len(addresses) == len(ports) == len(slots)
    assert sorted(name for wave in found.waves for name in wave) == sorted(
        placement.service.name for placement in found.placements
    )


@settings(max_examples=50, deadline=None)
@given(raw=_fleets(), seed=st.randoms(use_true_random=False))
def test_the_rendering_does_not_depend_on_the_order_of_the_declaration(
    raw: dict[str, Any], seed: Any
) -> None:
    shuffled = list(raw["vllm_service_services"].items())
    seed.shuffle(shuffled)
    one = outcome(raw, _BOXES["gpu_boxes"])
    other = outcome(
        copy.deepcopy(raw) | {"vllm_service_services": dict(shuffled)}, copy.deepcopy(_BOXES["gpu_boxes"])
    )
    assert one == other
    if isinstance(one, Plan) and isinstance(other, Plan):
        assert render(one, LAUNCHER) == render(other, LAUNCHER)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["text", "ocr", "embed"]),
    change=st.sampled_from(
        [{"max_model_len": 77}, {"environment": {"X": "1"}}, {"extra_args": ["--seed", "1"]}, {"slot": 50}]
    ),
)
def test_changing_one_service_changes_only_its_definition_and_the_registry(
    name: str, change: dict[str, Any]
) -> None:
    before = outcome(_RAW["gpu_boxes"], _BOXES["gpu_boxes"])
    after = outcome(with_service(_RAW["gpu_boxes"], name, **change), _BOXES["gpu_boxes"])
    assert isinstance(before, Plan)
    assert isinstance(after, Plan)
    old, new = render(before, LAUNCHER), render(after, LAUNCHER)
    changed = {path for path in old.files if old.files[path] != new.files[path]}
    assert changed <= {"engines/compose.yml", f"engines/{name}.env", "registry/registry.json"}
    assert old.router == new.router
    for service, definition in old.engines.definition["services"].items():
        label = definition["labels"][LABEL_DEFINITION]
        now = new.engines.definition["services"][service]["labels"][LABEL_DEFINITION]
        assert (label != now) == (service == name)
    registered = [json.loads(files["registry/registry.json"])["services"] for files in (old.files, new.files)]
    unchanged = [[entry for entry in services if entry["name"] != name] for services in registered]
    assert unchanged[0] == unchanged[1]


_DATA = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(document=st.dictionaries(st.text(max_size=8), _DATA, min_size=1, max_size=4))
def test_yaml_reads_what_was_written(document: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "text",
    ["--", "-", "---", "~", "=", "<<", "0x1f", "1e3", "1_000", "12:30", "a: b", "a:", "@x", "# x", "y"],
)
def test_texts_that_yaml_takes_for_something_else_stay_texts(text: str) -> None:
    assert yaml.safe_load(to_yaml({"a": text, text: ["b", text]})) == {"a": text, text: ["b", text]}
