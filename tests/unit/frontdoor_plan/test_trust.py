"""The peer path: how it is earned, and everything that leaves a set on the staged one."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_support import BEFORE_THAT, EARLIER, p2p, with_evidence
from frontdoor_plan import Plan, deployment, plan_table
from frontdoor_plan.render import render
from plan_support import LAUNCHER, box, declared, planned, refusals, variables, with_service

BOX = box("three_gpus")
SPLIT = with_service(variables("gpu_boxes"), "text", devices=["gpu0", "gpu1"], tensor_parallel=2)
ASKED = SPLIT | {"gpu_diag_allow_p2p": True}
BOOT_2 = "00000000-0000-4000-8000-000000000002"
BOOT_3 = "00000000-0000-4000-8000-000000000003"
OLD = "2026-08-06T09:30:00.000000Z"


def _earlier(
    corrupt: tuple[tuple[int, int], ...] = (), at: str = EARLIER, boot: str = BOOT_2
) -> dict[str, Any]:
    return p2p(BOX, corrupt, at=at, boot_id=boot)


EARNED = [p2p(BOX), _earlier()]


def _plan(documents: list[dict[str, Any]], raw: dict[str, Any] = ASKED, **facts: Any) -> Plan:
    return planned(raw, with_evidence(BOX, p2p=documents) | facts)


def _path(plan: Plan) -> str:
    return plan.placements[0].path


def test_clean_in_this_boot_and_an_earlier_one_earns_the_peer_path() -> None:
    plan = _plan(EARNED)
    assert _path(plan) == "peer"
    assert plan.warnings == ()
    assert "the peer path for text" in plan_table(plan)
    rendering = render(plan, LAUNCHER)
    text = rendering.engines.definition["services"]["text"]
    environment = rendering.files["engines/text.env"].decode()
    assert "NCCL_P2P_DISABLE" not in environment
    assert "VLLM_ALLREDUCE" not in environment
    assert "--disable-custom-all-reduce" not in text["command"]
    entrypoint = text["entrypoint"]
    assert entrypoint[entrypoint.index("--peer-path-boot") + 1] == BOX["boot_id"]


def test_every_other_service_stays_on_the_staged_path() -> None:
    files = render(_plan(EARNED), LAUNCHER).files
    for name in ("ocr", "embed"):
        assert "NCCL_P2P_DISABLE=1\n" in files[f"engines/{name}.env"].decode()


def test_nobody_gets_it_unasked() -> None:
    plan = _plan(EARNED, SPLIT)
    assert (_path(plan), plan.warnings) == ("staged", ())


def test_a_service_may_decline_it() -> None:
    raw = with_service(ASKED, "text", environment={"NCCL_P2P_DISABLE": 1})
    assert _path(_plan(EARNED, raw)) == "staged"


@pytest.mark.parametrize(
    ("documents", "missing"),
    [
        ([p2p(BOX)], "clean in 1 earlier boot(s) in a row; it was in 0"),
        ([p2p(BOX), p2p(BOX, at=EARLIER)], "it was in 0"),
        ([p2p(BOX, ((1, 0),)), _earlier()], "corrupt"),
        ([p2p(BOX, others="not_applicable"), _earlier()], "not_applicable"),
        ([p2p(BOX), p2p(BOX, ((0, 1),), at=EARLIER), _earlier(at=BEFORE_THAT)], "of this very boot"),
        ([p2p(BOX), _earlier(((0, 1),))], "in 2 earlier boot(s) in a row, since its faults have moved"),
        (
            [p2p(BOX), _earlier(), _earlier(((0, 1),), BEFORE_THAT, BOOT_3)],
            "in 2 earlier boot(s) in a row, since its faults have moved before; it was in 1",
        ),
        (
            [p2p(BOX), _earlier(((0, 1),)), _earlier((), BEFORE_THAT, BOOT_3), _earlier((), OLD, "4")],
            "it was in 0",
        ),
    ],
)
def test_what_is_missing_is_a_warning_and_the_staged_path(
    documents: list[dict[str, Any]], missing: str
) -> None:
    plan = _plan(documents)
    assert _path(plan) == "staged"
    (warning,) = plan.warnings
    assert missing in warning
    assert f"Warning: {warning}" in plan_table(plan)
    assert "NCCL_P2P_DISABLE=1\n" in render(plan, LAUNCHER).files["engines/text.env"].decode()


def test_faults_that_moved_need_two_clean_boots_since() -> None:
    documents = [p2p(BOX), _earlier(), _earlier((), BEFORE_THAT, BOOT_3), _earlier(((0, 1),), OLD, "4")]
    assert _path(_plan(documents)) == "peer"


def test_a_corrupt_pair_outside_the_set_does_not_matter() -> None:
    assert _path(_plan([p2p(BOX, ((0, 2),)), _earlier()])) == "peer"


def test_what_happened_since_revokes_it() -> None:
    """Suspect evidence refuses the split model altogether, until it is probed again."""
    address, at = BOX["gpus"][0]["pci_address"], "2026-08-12T10:00:00.000000Z"
    mark = {"boot_id": BOX["boot_id"], "at": at, "pci_address": address, "sentence": "Xid 31."}
    found = refusals(ASKED, with_evidence(BOX, p2p=EARNED) | {"suspicions": [mark]})
    assert any("p2p_check" in refusal.what and "suspect" in refusal.what for refusal in found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "true"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_SHM_DISABLE", "1"),
        ("NCCL_NVLS_ENABLE", "1"),
        ("NCCL_NET_GDR_LEVEL", "SYS"),
        ("NCCL_CONF_FILE", "/x"),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM", "1"),
    ],
)
def test_raw_settings_that_contradict_are_refused_even_where_it_is_earned(name: str, value: str) -> None:
    raw = with_service(ASKED, "text", environment={name: value})
    (refusal,) = refusals(raw, with_evidence(BOX, p2p=EARNED))
    assert refusal.where == f"vllm_service_services.text.environment.{name}"
    assert refusal.why


def test_a_split_model_on_gpus_has_nccl_tell_its_way_and_the_deployment_reads_it() -> None:
    plan = _plan(EARNED, SPLIT)
    rendering = render(plan, LAUNCHER)
    lines = {name: rendering.files[f"engines/{name}.env"].decode().splitlines() for name in ("text", "ocr")}
    assert {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV", "NCCL_NVLS_ENABLE=0"} <= set(lines["text"])
    assert not any(line.startswith("NCCL_DEBUG") for line in lines["ocr"])
    asked = deployment.engines(
        plan, rendering, declared(SPLIT).desired, deployment.Earlier("1", rendering, plan)
    )
    wanted = [{"service": "text", "ranks": 2, "peer_allowed": False}]
    assert (asked["transports"], asked["previous"]["transports"]) == (wanted, wanted)


def test_an_earned_peer_path_is_allowed_and_told_too() -> None:
    plan = _plan(EARNED)
    rendering = render(plan, LAUNCHER)
    asked = deployment.engines(plan, rendering, declared(ASKED).desired)
    assert asked["transports"] == [{"service": "text", "ranks": 2, "peer_allowed": True}]
    assert "NCCL_DEBUG=INFO\n" in rendering.files["engines/text.env"].decode()


def test_what_people_want_to_see_of_nccl_beyond_that_is_theirs() -> None:
    more = {"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_NVLS_ENABLE": "0"}
    environment = (
        render(_plan(EARNED, with_service(ASKED, "text", environment=more)), LAUNCHER)
        .files["engines/text.env"]
        .decode()
    )
    assert all(f"{name}={value}\n" in environment for name, value in more.items())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG_SUBSYS", "COLL"),
        ("NCCL_DEBUG_SUBSYS", "^INIT"),
        ("NCCL_DEBUG_FILE", "/tmp/nccl.log"),
    ],
)
def test_what_would_keep_the_way_out_of_the_log_is_refused(name: str, value: str) -> None:
    raw = with_service(SPLIT, "text", environment={name: value})
    (refusal,) = refusals(raw, with_evidence(BOX, p2p=[p2p(BOX)]))
    assert refusal.where == f"vllm_service_services.text.environment.{name}"
    assert "read from the engine's log" in str(refusal.why)


@pytest.mark.parametrize(("name", "value"), [("NCCL_DEBUG", "INFO"), ("NCCL_SHM_DISABLE", "0")])
def test_settings_that_contradict_nothing_are_taken(name: str, value: str) -> None:
    assert planned(with_service(SPLIT, "text", environment={name: value}), with_evidence(BOX, p2p=[p2p(BOX)]))
