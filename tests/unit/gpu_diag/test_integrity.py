"""Verdicts on single GPUs, from findings and error counters."""

from __future__ import annotations

import pytest
from gpu_diag import cli
from gpu_diag.integrity.verdict import DeviceResult, Finding, counter_findings, judge

GOOD = DeviceResult("A800", "GPU-0", ())


def test_good_devices_are_clean() -> None:
    judgement = judge([GOOD, GOOD])
    assert (judgement.verdict, judgement.class_) == ("clean", None)
    assert len(judgement.devices) == 2


@pytest.mark.parametrize(
    ("result", "verdict", "class_"),
    [
        (DeviceResult("A800", "GPU-1", (Finding("copy_corrupt", "x"),)), "corrupt", "copy_corrupt"),
        (DeviceResult("A800", "GPU-1", (), "hang", "x"), "hang", "hang"),
        (DeviceResult("A800", "GPU-1", (), "lost", "x"), "inconclusive", "device_lost"),
        (DeviceResult("A800", "GPU-1", (), "died", "x"), "inconclusive", "probe_died"),
        (DeviceResult("A800", "GPU-1", (Finding("compute_wrong", "x"),), "hang"), "corrupt", "compute_wrong"),
    ],
)
def test_the_worst_device_decides(result: DeviceResult, verdict: str, class_: str) -> None:
    judgement = judge([GOOD, result])
    assert (judgement.verdict, judgement.class_) == (verdict, class_)
    assert [device["verdict"] for device in judgement.devices] == ["clean", verdict]
    assert any(sentence.startswith("GPU 1 (A800): x") for sentence in judgement.evidence) is bool(
        result.sentence or result.findings
    )


def test_no_device_is_not_applicable() -> None:
    assert judge([]).verdict == "not_applicable"


@pytest.mark.parametrize(
    ("before", "after", "classes"),
    [
        ({"ecc_uncorrected": 0}, {"ecc_uncorrected": 1}, ["ecc_uncorrected"]),
        ({"ecc_corrected": 4}, {"ecc_corrected": 9}, ["ecc_corrected"]),
        ({"remapped_rows_uncorrectable": 0}, {"remapped_rows_uncorrectable": 1}, ["ecc_uncorrected"]),
        ({}, {"remapped_rows_failure": True}, ["row_remapping"]),
        ({"ecc_uncorrected": None}, {"ecc_uncorrected": None}, []),
        ({"ecc_uncorrected": 3}, {"ecc_uncorrected": 3}, []),
        ({}, {"ecc_uncorrected": 3}, []),
    ],
)
def test_what_counters_say(before: dict[str, object], after: dict[str, object], classes: list[str]) -> None:
    assert [finding.class_ for finding in counter_findings(before, after)] == classes


def test_corrected_errors_are_told_and_condemn_nothing() -> None:
    result = DeviceResult(
        "A800", "GPU-0", (), counters_before={"ecc_corrected": 1}, counters_after={"ecc_corrected": 2}
    )
    judgement = judge([result])
    assert judgement.verdict == "clean"
    assert judgement.evidence == ("GPU 0 (A800): ecc_corrected grew from 1 to 2 during the test.",)


def test_without_torch_the_tool_says_that_it_could_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["integrity"]) == 3
    assert "this needs torch" in capsys.readouterr().err
