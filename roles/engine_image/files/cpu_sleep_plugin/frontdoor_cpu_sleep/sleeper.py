"""The sleep levels on plain memory: what is saved, dropped, restored and lost."""

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from frontdoor_cpu_sleep import memory
from frontdoor_cpu_sleep.memory import Region

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)


@dataclass(frozen=True)
class ModelMemory:
    """Where a loaded model keeps its parameters, its buffers and its KV cache."""

    parameters: tuple[Region, ...]
    buffers: tuple[Region, ...]
    kv_cache: tuple[Region, ...]


class Model(Protocol):
    """What the sleeper asks of a loaded model."""

    def locate(self) -> ModelMemory:
        """Where the model's memory is now; asked at each sleep anew, because loading may move it."""

    def release_copies(self) -> None:
        """Free whatever was computed from the parameters for speed; the model works without."""

    def rebuild_copies(self) -> None:
        """Compute again what `release_copies` has freed."""


@dataclass(frozen=True)
class Report:
    """What a sleep or a wake did: bytes saved to or restored from the file, resident bytes, seconds."""

    tags: tuple[str, ...]
    file_bytes: int
    resident_before: int
    resident_after: int
    seconds: float


@dataclass(frozen=True)
class _SleepingWeights:
    saved: tuple[Region, ...]
    lost: tuple[Region, ...]
    file: BinaryIO


class Sleeper:
    """Puts a model's memory to sleep and wakes it, as vLLM does on a GPU.

    Level 1 keeps the weights (in a temporary file), level 2 keeps the buffers only, and a wake then leaves
    NaN for `reload_weights` to replace (which also rebuilds the copies). The KV cache is lost at both levels.

    The file has no name, so that nothing is left behind however the process ends. It lies in the folder that
    `tempfile` chooses (TMPDIR).
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._weights: _SleepingWeights | None = None
        self._kv_cache_sleeps = False

    @property
    def asleep(self) -> tuple[str, ...]:
        """The tags now asleep."""
        sleeping = {WEIGHTS: self._weights is not None, KV_CACHE: self._kv_cache_sleeps}
        return tuple(tag for tag in TAGS if sleeping[tag])

    def sleep(self, level: int) -> Report:
        """Put to sleep whatever is awake; what sleeps already stays as it is, at the level it has.

        Raises ValueError for a level other than 1 and 2, and OSError when the weights can't be saved; they
        are all still there then.
        """
        if level not in (1, 2):
            raise ValueError(f"the CPU worker sleeps at level 1 or 2, not at level {level!r}")
        clock = _Stopwatch()
        tags = tuple(tag for tag in TAGS if tag not in self.asleep)
        place = self._model.locate()
        saved_bytes = 0
        if WEIGHTS in tags:
            self._weights = _save_weights(place, level)
            saved_bytes = memory.total_bytes(self._weights.saved)
            self._model.release_copies()
            memory.drop(self._weights.saved + self._weights.lost)
        if KV_CACHE in tags:
            memory.drop(place.kv_cache)
            self._kv_cache_sleeps = True
        memory.trim_heap()
        return clock.report(tags, saved_bytes)

    def wake(self, tags: Iterable[str] | None) -> Report:
        """Wake those of `tags` that sleep; None means all.

        Raises ValueError for an unknown tag, and OSError when the saved weights can't be read back.
        """
        wanted = TAGS if tags is None else tuple(tags)
        if unknown := set(wanted) - set(TAGS):
            raise ValueError(f"unknown sleep tags {sorted(unknown)}: there are {list(TAGS)}")
        clock = _Stopwatch()
        waking = tuple(tag for tag in self.asleep if tag in wanted)
        restored_bytes = 0
        if WEIGHTS in waking and self._weights is not None:
            restored_bytes = memory.total_bytes(self._weights.saved)
            _wake_weights(self._weights)
            if not self._weights.lost:
                self._model.rebuild_copies()
            self._weights.file.close()
            self._weights = None
        if KV_CACHE in waking:
            self._kv_cache_sleeps = False
        return clock.report(waking, restored_bytes)


def _save_weights(place: ModelMemory, level: int) -> _SleepingWeights:
    saved, lost = (place.parameters + place.buffers, ()) if level == 1 else (place.buffers, place.parameters)
    file = tempfile.TemporaryFile(prefix="frontdoor-cpu-sleep-")  # noqa: SIM115 - it lives until the wake
    try:
        memory.save(saved, file)
    except OSError:
        file.close()
        raise
    return _SleepingWeights(saved=saved, lost=lost, file=file)


def _wake_weights(sleeping: _SleepingWeights) -> None:
    memory.poison(sleeping.lost)
    sleeping.file.seek(0)
    # A buffer may share its memory with a parameter; what was saved must win.
    memory.restore(sleeping.saved, sleeping.file)


class _Stopwatch:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._resident_before = memory.resident_bytes()

    def report(self, tags: tuple[str, ...], file_bytes: int) -> Report:
        return Report(
            tags=tags,
            file_bytes=file_bytes,
            resident_before=self._resident_before,
            resident_after=memory.resident_bytes(),
            seconds=time.monotonic() - self._started,
        )
