"""The sleep levels on this process's real memory."""

import ctypes
import mmap
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from frontdoor_cpu_sleep import memory
from frontdoor_cpu_sleep.memory import Region
from frontdoor_cpu_sleep.sleeper import ModelMemory, Sleeper

MEBIBYTE = 2**20


def make_region(size: int, offset: int = 0) -> Region:
    """A region of random bytes that starts `offset` bytes after a page's start."""
    owner = mmap.mmap(-1, offset + size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region = Region(ctypes.addressof(ctypes.c_ubyte.from_buffer(owner)) + offset, size, owner)
    region.view()[:] = random.Random(size).randbytes(size)
    return region


class SmallModel:
    """Parameters of 8 MiB, buffers smaller than a page, a KV cache of 4 MiB, and copies to count."""

    def __init__(self) -> None:
        self.parameters = (make_region(8 * MEBIBYTE - 100, offset=64), make_region(100, offset=8))
        self.buffers = (make_region(1000, offset=16),)
        self.kv_cache = (make_region(4 * MEBIBYTE),)
        self.copies = True

    def locate(self) -> ModelMemory:
        return ModelMemory(self.parameters, self.buffers, self.kv_cache)

    def release_copies(self) -> None:
        self.copies = False

    def rebuild_copies(self) -> None:
        self.copies = True


def contents(regions: tuple[Region, ...]) -> list[bytes]:
    return [bytes(region.view()) for region in regions]


def all_are(value: int, regions: tuple[Region, ...]) -> bool:
    return all(content == bytes([value]) * len(content) for content in contents(regions))


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_frees_the_memory_and_releases_the_copies(level: int) -> None:
    model = SmallModel()
    before = memory.resident_bytes()
    report = Sleeper(model).sleep(level)
    assert before - memory.resident_bytes() > 11 * MEBIBYTE
    assert report.resident_before - report.resident_after > 11 * MEBIBYTE
    assert report.tags == ("weights", "kv_cache")
    assert not model.copies


@pytest.mark.parametrize("steps", [[None], [["weights"], ["kv_cache"]], [["kv_cache"], ["weights"]]])
def test_level_1_restores_every_byte(steps: list[list[str] | None]) -> None:
    model = SmallModel()
    weights = contents(model.parameters + model.buffers)
    sleeper = Sleeper(model)
    slept = sleeper.sleep(1)
    restored = [sleeper.wake(tags).file_bytes for tags in steps]
    assert contents(model.parameters + model.buffers) == weights
    assert all_are(0, model.kv_cache)
    assert sum(restored) == slept.file_bytes == sum(map(len, weights))
    assert sleeper.asleep == ()
    assert model.copies


def test_level_2_restores_buffers_and_loses_parameters() -> None:
    model = SmallModel()
    buffers = contents(model.buffers)
    sleeper = Sleeper(model)
    assert sleeper.sleep(2).file_bytes == 1000
    assert sleeper.wake(["weights"]).file_bytes == 1000
    assert contents(model.buffers) == buffers
    assert all_are(memory.POISON, model.parameters)
    assert not model.copies, "only a reload may rebuild copies of lost weights"


def test_a_buffer_inside_a_parameter_survives_level_2() -> None:
    model = SmallModel()
    inside = Region(model.parameters[0].address + 5000, 300, model.parameters[0].owner)
    model.buffers = (inside,)
    before = contents((inside,))
    sleeper = Sleeper(model)
    sleeper.sleep(2)
    sleeper.wake(None)
    assert contents((inside,)) == before


def test_an_untagged_wake_does_not_touch_weights_already_woken() -> None:
    model = SmallModel()
    sleeper = Sleeper(model)
    sleeper.sleep(2)
    sleeper.wake(["weights"])
    model.parameters[0].view()[:4] = b"good"
    assert sleeper.wake(None).tags == ("kv_cache",)
    assert bytes(model.parameters[0].view()[:4]) == b"good"


@pytest.mark.parametrize("second_level", [1, 2])
def test_sleeping_again_keeps_the_first_level(second_level: int) -> None:
    model = SmallModel()
    weights = contents(model.parameters)
    sleeper = Sleeper(model)
    sleeper.sleep(1)
    assert sleeper.sleep(second_level).tags == ()
    sleeper.wake(None)
    assert contents(model.parameters) == weights


def test_a_half_woken_model_can_sleep_again() -> None:
    model = SmallModel()
    weights = contents(model.parameters)
    sleeper = Sleeper(model)
    sleeper.sleep(1)
    sleeper.wake(["weights"])
    assert sleeper.asleep == ("kv_cache",)
    assert sleeper.sleep(1).tags == ("weights",)
    sleeper.wake(None)
    assert contents(model.parameters) == weights


def test_waking_the_awake_changes_nothing() -> None:
    model = SmallModel()
    everything = contents(model.parameters + model.buffers + model.kv_cache)
    assert Sleeper(model).wake(None).tags == ()
    assert contents(model.parameters + model.buffers + model.kv_cache) == everything


@pytest.mark.parametrize("level", [0, 3, -1])
def test_an_unknown_level_is_refused_and_changes_nothing(level: int) -> None:
    model = SmallModel()
    sleeper = Sleeper(model)
    weights = contents(model.parameters)
    with pytest.raises(ValueError, match="level 1 or 2"):
        sleeper.sleep(level)
    assert sleeper.asleep == ()
    assert contents(model.parameters) == weights


def test_an_unknown_tag_is_refused_and_wakes_nothing() -> None:
    sleeper = Sleeper(SmallModel())
    sleeper.sleep(1)
    with pytest.raises(ValueError, match="unknown sleep tags"):
        sleeper.wake(["weights", "scales"])
    assert sleeper.asleep == ("weights", "kv_cache")


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A real full disk, as far as this process can tell (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_weights_that_cannot_be_saved_stay_awake() -> None:
    model = SmallModel()
    weights = contents(model.parameters)
    sleeper = Sleeper(model)
    with files_no_larger_than(MEBIBYTE), pytest.raises(OSError, match="File too large"):
        sleeper.sleep(1)
    assert sleeper.asleep == ()
    assert contents(model.parameters) == weights
    assert model.copies


def test_a_file_cut_short_is_an_error_and_the_weights_stay_asleep() -> None:
    model = SmallModel()
    sleeper = Sleeper(model)
    open_before = open_files()
    sleeper.sleep(1)
    (saved,) = open_files() - open_before
    os.truncate(f"/proc/self/fd/{saved}", MEBIBYTE)
    with pytest.raises(OSError, match="cut short"):
        sleeper.wake(None)
    assert sleeper.asleep == ("weights", "kv_cache")


def test_the_saved_weights_have_no_name_and_go_with_the_wake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_before = open_files()
    sleeper = Sleeper(SmallModel())
    sleeper.sleep(1)
    assert list(tmp_path.iterdir()) == []
    assert len(open_files() - open_before) == 1
    sleeper.wake(None)
    assert open_files() == open_before


def open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    return {entry.name for entry in list(folder.iterdir()) if os.path.lexists(entry)}


def test_memory_that_cannot_be_freed_is_an_error() -> None:
    unmapped = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(anchor := ctypes.c_ubyte.from_buffer(unmapped))
    del anchor
    unmapped.close()
    with pytest.raises(OSError, match="could not free 4096 bytes"):
        memory.drop([Region(address, mmap.PAGESIZE, None)])
