"""The page of what has never run on hardware is generated, complete, and not shortened by stand-ins."""

from __future__ import annotations

from typing import get_args

import pytest
from gpu_diag import cli
from gpu_diag.devices.protocol import How

from tests.hardware.page import PAGE, PARTS, page, read_records


def test_the_committed_page_is_what_the_records_make() -> None:
    assert PAGE.read_text() == page(read_records()), "write it anew: python tests/hardware/page.py"


def test_every_way_of_moving_words_and_every_probe_has_a_part() -> None:
    ids = {part.id for part in PARTS}
    assert {f"p2p-{how}" for how in get_args(How)} <= ids
    assert {"integrity", "weights"} <= ids
    assert len(ids) == len(PARTS)


def test_a_record_takes_its_row_off() -> None:
    record = {
        "part": "integrity",
        "gpu": "NVIDIA A800-SXM4-80GB",
        "driver": "595.71.05",
        "date": "2026-08-08",
    }
    text = page([record])
    assert "| `integrity` on a GPU" not in text
    assert "NVIDIA A800-SXM4-80GB, driver 595.71.05, 2026-08-08" in text


@pytest.mark.parametrize(
    "record",
    [
        {"part": "integrity", "gpu": "share 0 of the processor, standing for a GPU"},
        {"part": "integrity", "gpu": "simulated GPU 0"},
        {"part": "nonsense", "gpu": "NVIDIA A800"},
    ],
)
def test_a_stand_in_takes_no_row_off(record: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"names no real GPU|there is no part"):
        page([record])


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("p2p", "integrity", "weights", "watch", "report", "host"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
        assert "exit status: 0 clean" in " ".join(capsys.readouterr().out.split())
