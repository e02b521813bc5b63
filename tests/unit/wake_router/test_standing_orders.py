"""What must be known again after a restart: standing orders and the makers of responses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wake_router import response_ids
from wake_router.durable import DurableWriteError
from wake_router.response_ids import ResponseIds
from wake_router.service_state import SOMEBODY
from wake_router.standing_orders import PARKED_UNKNOWN_SECONDS, Parking, StandingOrders

DAMAGE = [b"", b"\x00\xff", b"{", b"[]", b"null", b'{"schema_version": 2}', b'{"schema_version": 1}']


class Wall:
    """A wall clock that is set by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("device", ["cpu:left", "GPU-0a1b", "../../odd name", "."])
def test_a_cordon_stands_until_it_is_lifted(tmp_path: Path, device: str) -> None:
    StandingOrders(tmp_path / "orders", Wall()).cordon(device)
    again = StandingOrders(tmp_path / "orders", Wall())
    assert again.cordoned() == {device}
    again.uncordon(device)
    again.uncordon(device)
    assert again.cordoned() == frozenset()
    assert [path.name for path in tmp_path.iterdir()] == ["orders"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cordon_is_still_one(tmp_path: Path, damage: bytes) -> None:
    orders = StandingOrders(tmp_path, Wall())
    orders.cordon("cpu:left")
    (tmp_path / "cordons/cpu:left.json").write_bytes(damage)
    assert orders.cordoned() == {"cpu:left"}


def test_a_draft_is_no_cordon(tmp_path: Path) -> None:
    (tmp_path / "cordons").mkdir()
    (tmp_path / "cordons/cpu:left.draft").write_bytes(b"")
    assert StandingOrders(tmp_path, Wall()).cordoned() == frozenset()


def test_a_parking_lasts_as_long_as_it_was_ordered(tmp_path: Path) -> None:
    wall = Wall()
    StandingOrders(tmp_path, wall).park("text", Parking(100.0, "operator 'root'"))
    orders = StandingOrders(tmp_path, wall)
    assert orders.parking("text") == Parking(100.0, "operator 'root'")
    assert orders.parking("other") is None
    wall.now += 60
    assert orders.parking("text") == Parking(40.0, "operator 'root'")
    wall.now += 41
    assert orders.parking("text") is None
    orders.park("text", None)
    orders.park("text", None)
    wall.now -= 90
    assert orders.parking("text") is None


def test_a_clock_that_is_put_back_parks_nothing_longer(tmp_path: Path) -> None:
    wall = Wall()
    orders = StandingOrders(tmp_path, wall)
    orders.park("text", Parking(100.0, "operator 'root'"))
    wall.now -= 1_000_000
    assert orders.parking("text") == Parking(100.0, "operator 'root'")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_parking_still_parks(tmp_path: Path, damage: bytes) -> None:
    orders = StandingOrders(tmp_path, Wall())
    orders.park("text", Parking(5.0))
    (tmp_path / "parkings/text.json").write_bytes(damage)
    assert orders.parking("text") == Parking(PARKED_UNKNOWN_SECONDS, SOMEBODY)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("no folder")
    with pytest.raises(DurableWriteError, match="can't be written"):
        StandingOrders(tmp_path / "orders", Wall()).cordon("cpu:left")
    assert StandingOrders(tmp_path / "orders", Wall()).cordoned() == frozenset()


def ids_at(path: Path, said: list[str] | None = None) -> ResponseIds:
    return ResponseIds(path, (said if said is not None else []).append)


def test_makers_of_responses_are_known_again_without_an_orderly_end(tmp_path: Path) -> None:
    first = ids_at(tmp_path / "ids")
    first.remember("resp_1", "text")
    first.remember("resp_2", "ocr")
    second = ids_at(tmp_path / "ids")
    assert (second.service_of("resp_1"), second.service_of("resp_2")) == ("text", "ocr")
    assert second.service_of("resp_3") is None


@pytest.mark.parametrize(
    "damage", [b"", b"\x00\xff\n\n", b"{}\n", b'{"schema_version": 2}\n["resp_1", "text"]\n']
)
def test_a_damaged_file_of_responses_is_begun_again(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "ids"
    path.write_bytes(damage)
    ids = ids_at(path)
    assert ids.service_of("resp_1") is None
    ids.remember("resp_1", "text")
    assert ids_at(path).service_of("resp_1") == "text"


def test_damaged_lines_among_good_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    ids_at(path).remember("resp_1", "text")
    with path.open("ab") as file:
        file.write(b'["resp_2"\n[1, 2]\n"resp_3"\n["resp_4", "ocr"]\n["resp_5", "te')
    ids = ids_at(path)
    known = [name for name in ("resp_1", "resp_2", "resp_3", "resp_4", "resp_5") if ids.service_of(name)]
    assert known == ["resp_1", "resp_4"]


def test_the_oldest_responses_are_forgotten_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_ids, "REMEMBERED", 3)
    ids = ids_at(tmp_path / "ids")
    for number in range(20):
        ids.remember(f"resp_{number}", "text")
    for each in (ids, ids_at(tmp_path / "ids")):
        assert [number for number in range(20) if each.service_of(f"resp_{number}")] == [17, 18, 19]
    assert len((tmp_path / "ids").read_bytes().splitlines()) <= 1 + 2 * 3


def test_responses_are_known_without_a_disk(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "state").write_text("no folder")
    ids = ids_at(tmp_path / "state/ids", said)
    ids.remember("resp_1", "text")
    assert ids.service_of("resp_1") == "text"
    assert len(said) == 1 and "can't be written" in said[0]


def test_a_parking_of_an_earlier_router_has_no_name(tmp_path: Path) -> None:
    wall = Wall()
    (tmp_path / "parkings").mkdir()
    document = {"schema_version": 1, "until": wall.now + 9, "seconds": 9}
    (tmp_path / "parkings/text.json").write_text(json.dumps(document))
    assert StandingOrders(tmp_path, wall).parking("text") == Parking(9.0, SOMEBODY)
