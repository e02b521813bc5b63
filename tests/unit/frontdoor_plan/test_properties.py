"""What holds for any declaration, however wrong."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
import yaml
from evidence_support import integrity, p2p, with_evidence
from frontdoor_plan import Plan, Refusal, plan_table, refusal_message, render
from frontdoor_plan.declaration import SERVICE_KEYS
from frontdoor_plan.document import to_yaml
from frontdoor_plan.instance import LABEL_DEFINITION
from frontdoor_plan.sizes import claim
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
            fractions[device.key] += claim(
                placement.memory.fraction or Decimal(0), placement.memory.residue, device
            )
            users[device.key].append(placement.service.exclusive)
    assert all(total <= Decimal("0.88") for total in fractions.values())
    asleep = sum(placement.memory.host.size for placement in found.placements)
    assert asleep <= found.host_memory_limit * found.host_memory_bytes
    assert all(len(exclusive) == 1 or not any(exclusive) for exclusive in users.values())
    slots = [placement.service.slot for placement in found.placements]
    addresses = {found.instance.engine_address(slot) for slot in slots}
    ports = {found.instance.debug_port(slot) for slot in slots}
    assert len(addresses) == len(ports) == len(slots)
    assert sorted(name for wave in found.waves for name in wave) == sorted(
        placement.service.name for placement in found.placements
    )


_DAYS = st.lists(st.integers(1, 28), max_size=4, unique=True).map(lambda days: sorted(days, reverse=True))
_VERDICTS = st.sampled_from(["clean", "corrupt", "hang", "inconclusive"])


@st.composite
def _boxes(draw: st.DrawFn) -> dict[str, Any]:
    """A box whose evidence is of any kind: good, bad, stale, suspect, missing or odd."""
    facts = _BOXES["gpu_boxes"]
    boots = st.sampled_from([facts["boot_id"], "another boot", "a third boot"])
    pairs = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=3)
    p2p_documents = [
        p2p(facts, tuple(draw(pairs)), at=f"2026-08-{day:02}T09:30:00.000000Z", boot_id=draw(boots),
            control_words=draw(st.sampled_from([0, 10])))
        for day in draw(_DAYS)
    ]  # fmt: skip
    verdicts = {number: draw(_VERDICTS) for number in range(3)}
    tested = integrity(facts, {n: v for n, v in verdicts.items() if v != "clean"}, boot_id=draw(boots))
    mark = {
        "boot_id": facts["boot_id"],
        "at": draw(st.sampled_from(["2026-08-01", "2026-09-01"])),
        "pci_address": facts["gpus"][draw(st.integers(0, 2))]["pci_address"],
        "sentence": "Xid.",
    }
    marks = draw(st.sampled_from([[], [mark]]))
    evidence = {"integrity": draw(st.sampled_from([[], [tested], [{"odd": 1}]])), "p2p": p2p_documents}
    return with_evidence(facts, **evidence) | {"suspicions": marks}


_ASKS = with_service(_RAW["gpu_boxes"], "text", devices=["gpu0", "gpu1"], tensor_parallel=2) | {
    "gpu_diag_allow_p2p": True
}


@settings(max_examples=200, deadline=None)
@given(facts=_boxes(), split=st.booleans())
def test_no_plan_uses_what_is_not_proven(facts: dict[str, Any], split: bool) -> None:
    found = outcome(_ASKS if split else _RAW["gpu_boxes"], facts)
    if not isinstance(found, Plan):
        return
    boot = facts["boot_id"]
    tested = facts["evidence"]["integrity"][0]
    used = {device.uuid for placement in found.placements for device in placement.devices}
    assert tested["identity"]["boot_id"] == boot
    assert all(each["verdict"] == "clean" for each in tested["details"]["devices"] if each["uuid"] in used)
    for placement in found.placements:
        environment = render(found, LAUNCHER).files[f"engines/{placement.service.name}.env"].decode()
        if placement.path == "staged":
            assert "NCCL_P2P_DISABLE=1\n" in environment
            continue
        newest = facts["evidence"]["p2p"][0]
        pairs = {
            (each["source"], each["destination"]): each["verdict"] for each in newest["details"]["pairs"]
        }
        assert newest["identity"]["boot_id"] == boot
        assert pairs[0, 1] == pairs[1, 0] == "clean"
        assert any(each["identity"]["boot_id"] != boot for each in facts["evidence"]["p2p"])


@settings(max_examples=60, deadline=None)
@given(raw=_fleets(), bad=st.sampled_from([{"devices": ["gpu9"]}, {"extra_args": ["--no-such-flag"]}]))
def test_a_refused_wish_is_never_rendered(raw: dict[str, Any], bad: dict[str, Any]) -> None:
    """One wrong service, and there is no plan for any of them."""
    name = sorted(raw["vllm_service_services"])[0]
    assert not isinstance(outcome(with_service(raw, name, **bad), _BOXES["gpu_boxes"]), Plan)


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
