"""The check of paths between GPUs, on simulated machines: each fault gets the verdict that the table
gives."""

from __future__ import annotations

import ast
import inspect
import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import numpy as np
import pytest
from gpu_diag import cli
from gpu_diag.devices.protocol import ARENA_WORDS
from gpu_diag.devices.simulated import SimulatedDevices
from gpu_diag.devices.simulation import simulation_names
from gpu_diag.evidence import EvidenceStore, json_schema
from gpu_diag.p2p import child, plan, probe, verdict, words
from gpu_diag.p2p import classify as classify_module
from gpu_diag.p2p.verdict import Ending
from hypothesis import given, settings
from hypothesis import strategies as st

TABLE: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "p2p_verdict_table.json").read_text())
# Two GPUs are enough for most faults, and three times as fast.
NEEDS_THREE = {"zeroed/all_pairs", "other_memory", "one_pair_without_access"}
RULES = ("words.py", "classify.py", "verdict.py", "plan.py", "probe.py")

Capture = pytest.CaptureFixture[str]


def check(capsys: Capture, fault: str, *more: str) -> tuple[int, dict[str, Any]]:
    seed = random.SystemRandom().randrange(1 << 32)
    count = "3" if fault in NEEDS_THREE or "+" in fault else "2"
    line = ["p2p", "--simulate", fault, "--json", "--seed", str(seed), "--devices", count, *more]
    status = cli.main([*line, "--step-limit", "0.3" if fault == "hang" else "20"])
    return status, json.loads(capsys.readouterr().out)


def outcome(status: int, document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "verdict": document["verdict"],
        "class": document["class"],
        "classes": document["details"].get("classes", []),
        "status": status,
    }


def test_the_table_has_every_fault(capsys: Capture) -> None:
    assert cli.main(["p2p", "--simulate", "list"]) == 0
    assert capsys.readouterr().out.split() == simulation_names() == list(TABLE)


@pytest.mark.parametrize("fault", TABLE)
def test_each_fault_comes_out_as_the_table_says(capsys: Capture, fault: str) -> None:
    expected = dict(TABLE[fault])
    multiple = expected.pop("multiple_of", None)
    status, document = check(capsys, fault)
    assert outcome(status, document) == expected, f"seed {document['details'].get('seed')}"
    jsonschema.validate(document, json_schema())
    if multiple is not None:
        found = {d["multiple_of"] for pair in document["details"]["pairs"] for d in pair["distances"]}
        assert found == {multiple}


def test_only_the_faulty_source_is_blamed(capsys: Capture) -> None:
    _, document = check(capsys, "zeroed/one_source", "--devices", "3")
    blamed = {pair["source"] for pair in document["details"]["pairs"] if pair["verdict"] == "corrupt"}
    clean = {pair["source"] for pair in document["details"]["pairs"] if pair["verdict"] == "clean"}
    assert len(blamed) == 1 and len(clean) == 2 and not blamed & clean


def test_a_pair_without_access_is_not_called_clean(capsys: Capture) -> None:
    _, document = check(capsys, "one_pair_without_access")
    verdicts = {(p["source"], p["destination"]): p["verdict"] for p in document["details"]["pairs"]}
    assert verdicts.pop((0, 1)) == "not_applicable"
    assert set(verdicts.values()) == {"clean"}


def test_where_words_landed_is_told(capsys: Capture) -> None:
    _, document = check(capsys, "wrong_page_1g")
    assert {abs(entry["distance_bytes"]) for entry in document["details"]["landed"]} == {1 << 30}
    _, document = check(capsys, "host_memory")
    assert {entry["owner"] for entry in document["details"]["landed"]} == {words.HOST}


EFFECTS_TO_COMBINE = ["zeroed", "all_ones", "stale", "wrong_source_page_64k", "mirror", "bit_flips"]


def test_a_combination_drawn_anew_has_the_classes_of_its_parts(capsys: Capture) -> None:
    chosen = random.SystemRandom().sample(EFFECTS_TO_COMBINE, 2)
    # The first acts on copies by the engine, the second on stores: both are seen as they are.
    fault = f"{chosen[0]}/engine+{chosen[1]}/stores"
    _, document = check(capsys, fault)
    expected = sorted({name for part in chosen for name in TABLE[part]["classes"]})
    assert document["details"]["classes"] == expected, (fault, document["details"]["seed"])


def test_one_word_in_as_many_as_are_tested_is_found(capsys: Capture) -> None:
    tested = 2 * 3 * 10**7
    status, document = check(capsys, f"dropped/once_in_{tested}")
    assert status == 2
    wrong = sum(pair["wrong_words"] for pair in document["details"]["pairs"])
    assert 1 <= wrong <= document["details"]["words"] // tested + 1


def rules_of_the_classifier() -> dict[str, str]:
    """The rules in ``classify``: the class that each gives, and the source of its statement."""
    function = next(
        node
        for node in ast.parse(inspect.getsource(classify_module)).body
        if isinstance(node, ast.FunctionDef) and node.name == "classify"
    )
    calls = [
        statement
        for statement in function.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
        and statement.value.func.id.startswith("take")
    ]
    return {ast.literal_eval(call.value.args[0]): ast.unparse(call) for call in calls}  # type: ignore[attr-defined]


def classifier_without(class_: str) -> Callable[..., Any]:
    """The function ``classify`` as it is, with one rule taken out of its source."""
    tree = ast.parse(inspect.getsource(classify_module))
    statement = rules_of_the_classifier()[class_]
    before = ast.unparse(tree)
    assert before.count(statement) == 1
    module = ModuleType("sabotaged")
    sys.modules[module.__name__] = module
    exec(before.replace(statement, "pass"), module.__dict__)
    # What is found stays comparable with the rest of the package.
    module.__dict__["Findings"] = classify_module.Findings
    sabotaged: Callable[..., Any] = module.__dict__["classify"]
    return sabotaged


# A row of the table that only the rule of this class gets right.
ROW_OF_THE_RULE = {
    "dropped": "dropped",
    "zeroed": "zeroed",
    "aborted": "all_ones",
    "mistranslated": "wrong_source_page_64k",
    "crosstalk": "crosstalk",
    "bitflip": "bit_flips",
    "stale": "stale",
    "garbage": "garbage",
}


def test_every_rule_of_the_classifier_has_its_sabotage() -> None:
    assert set(rules_of_the_classifier()) == set(ROW_OF_THE_RULE)


@pytest.mark.parametrize("class_", ROW_OF_THE_RULE)
def test_the_table_catches_a_classifier_that_lacks_a_rule(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, class_: str
) -> None:
    monkeypatch.setattr(probe, "classify", classifier_without(class_))
    fault = ROW_OF_THE_RULE[class_]
    status, document = check(capsys, fault)
    expected = {key: value for key, value in TABLE[fault].items() if key != "multiple_of"}
    assert outcome(status, document) != expected


def no_strays(*_: object) -> classify_module.Findings:
    return classify_module.Findings()


SABOTAGES: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "mirror": (SimulatedDevices, "read_back", lambda *_: None),
    "other_memory": (probe, "classify_strays", no_strays),
    "host_memory": (probe, "classify_strays", no_strays),
    "hang": (child, "_hang", lambda *_: Ending("completed")),
    "no_peer_access": (SimulatedDevices, "peer_access", lambda *_: True),
    "control_broken": (verdict, "_is_wrong", lambda *_: False),
}


@pytest.mark.parametrize("fault", SABOTAGES)
def test_the_table_catches_a_check_that_does_not_look_elsewhere(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(*SABOTAGES[fault])
    status, document = check(capsys, fault)
    assert outcome(status, document) != TABLE[fault]


def test_what_judges_knows_nothing_of_faults(role: Path) -> None:
    for name in RULES:
        tree = ast.parse((role / "files" / "gpu_diag" / "p2p" / name).read_text())
        imported = {
            module
            for node in ast.walk(tree)
            for module in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        allowed = {module for module in imported if module.startswith("gpu_diag")}
        assert allowed <= {
            "gpu_diag.devices.protocol",
            *(f"gpu_diag.p2p.{rule.removesuffix('.py')}" for rule in RULES),
        }, name


@pytest.mark.parametrize(
    ("fault", "verdict", "class_"),
    [("zeroed", "clean", None), ("control_broken", "inconclusive", "control_failed")],
)
def test_the_control_arm_alone_says_nothing_of_the_paths(
    capsys: Capture, fault: str, verdict: str, class_: str | None
) -> None:
    _, document = check(capsys, fault, "--control")
    assert (document["verdict"], document["class"], document["details"]["pairs"]) == (verdict, class_, [])
    assert document["details"]["words"] == 0 and document["details"]["control_words"] > 0


def test_one_gpu_has_no_path_to_check(capsys: Capture) -> None:
    _, document = check(capsys, "healthy", "--devices", "1")
    assert (document["verdict"], document["class"]) == ("not_applicable", "one_device")


def test_an_unknown_fault_and_evidence_of_a_simulation_are_refused(capsys: Capture, tmp_path: Path) -> None:
    for wrong in ("nonsense", "zeroed/nonsense", "stale+nonsense"):
        assert cli.main(["p2p", "--simulate", wrong]) == 64
        assert "there is no fault 'nonsense'" in capsys.readouterr().err.replace("zeroed/", "")
    assert cli.main(["p2p", "--simulate", "nonsense", "--json"]) == 64
    assert "there is no fault 'nonsense'" in capsys.readouterr().err
    assert cli.main(["p2p", "--simulate", "healthy", "--evidence", str(tmp_path)]) == 64
    assert "writes no evidence" in capsys.readouterr().err


def test_without_torch_the_tool_says_that_it_could_not_run(capsys: Capture, tmp_path: Path) -> None:
    assert cli.main(["p2p", "--evidence", str(tmp_path)]) == 3
    assert "this needs torch" in capsys.readouterr().err
    assert EvidenceStore(tmp_path).interrupted("boot") == []
    assert not (tmp_path / "p2p").exists()


def default_plan(devices: int, rounds: int) -> list[plan.Step]:
    generator = random.Random(1)
    nonces = words.choose_nonces(generator)
    return plan.make_plan(devices, lambda a, b: True, ("copy_engine", "store"), nonces, generator, rounds)


def test_the_plan_for_three_gpus_takes_less_than_a_minute() -> None:
    assert plan.estimated_seconds(default_plan(3, 2), 3) < 60


def test_the_plan_covers_its_axes() -> None:
    steps = default_plan(3, 1)
    assert [step.mode for step in steps] == sorted(
        (step.mode for step in steps), key=["control", "one_way", "both_ways", "all_pairs"].index
    )
    sizes = {message.count * 8 for step in steps for message in step.messages}
    assert min(sizes) == 8 and max(sizes) == 512 << 20
    arms = {(step.mode, step.how) for step in steps}
    assert len(arms) == 1 + 3 * 2
    for step in steps:
        assert len({message.nonce for message in step.messages}) == 1
    sweeps = [(step.mode, step.how, step.messages[0].count, step.messages[0].nonce) for step in steps]
    assert len({nonce for *_, nonce in sweeps}) == len(set(sweeps))


def test_eight_gpus_fit_into_their_arenas() -> None:
    for step in default_plan(8, 1):
        for message in step.messages:
            assert message.end <= ARENA_WORDS


def test_nonces_are_far_from_each_other_and_from_all_complements() -> None:
    nonces = words.choose_nonces(random.Random(3))
    everything = np.array([*nonces, *(nonce ^ 0xFFFF for nonce in nonces)], np.uint64)
    apart = words.bits_apart(everything[:, None], everything[None, :])
    np.fill_diagonal(apart, 64)
    assert apart.min() >= 4
    assert len(nonces) == 1023


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
@settings(max_examples=200, deadline=None)
def test_bits_are_counted_as_python_counts_them(values: list[int]) -> None:
    found = words.count_bits(np.array(values, np.uint64))
    assert found.tolist() == [value.bit_count() for value in values]
