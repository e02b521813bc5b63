"""vLLM's CPU worker with a sleep that sleeps (written for vLLM 0.27.1 and 0.32.0)."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import vllm.model_executor.layers.utils as layer_utils
from vllm.logger import init_logger
from vllm.v1.worker.cpu_worker import CPUWorker

from frontdoor_cpu_sleep.memory import Region
from frontdoor_cpu_sleep.sleeper import ModelMemory, Report, Sleeper

# Below "vllm", because vLLM's logging shows only what is there.
logger = init_logger("vllm.frontdoor_cpu_sleep")

MEBIBYTE = 2**20


class SleepingCPUWorker(CPUWorker):  # type: ignore[misc]
    """The CPU worker, whose sleep frees memory and whose level 2 loses the weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what vLLM's worker takes."""
        super().__init__(*args, **kwargs)
        keep_parameters()
        self._sleeper = Sleeper(_WorkersModel(self))

    def sleep(self, level: int = 1) -> None:
        """Put the model to sleep; again is fine. Raises ValueError (level) or OSError (no room to save)."""
        report = self._sleeper.sleep(level)
        logger.info("Asleep at level %d: %s", level, describe(report, "saved"))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake `tags` (all by default); awake is fine. Raises ValueError (tags) or OSError (file lost)."""
        report = self._sleeper.wake(tags)
        logger.info("Woken: %s", describe(report, "restored"))


class _WorkersModel:
    """A worker's model (and its draft model, if it has one), as the sleeper wants to see it."""

    def __init__(self, worker: CPUWorker) -> None:
        self._worker = worker
        self._unpacked: list[Any] = []

    def locate(self) -> ModelMemory:
        models = self._models()
        return ModelMemory(
            parameters=regions_of(tensor for model in models for tensor in model.parameters()),
            buffers=regions_of(tensor for model in models for tensor in model.buffers()),
            kv_cache=regions_of(tensors_in(self._worker.model_runner.kv_caches)),
        )

    def release_copies(self) -> None:
        self._unpacked = [layer for model in self._models() for layer in model.modules() if is_packed(layer)]
        for layer in self._unpacked:
            layer.cpu_linear = torch.nn.functional.linear

    def rebuild_copies(self) -> None:
        for layer in self._unpacked:
            layer_utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
        self._unpacked = []

    def _models(self) -> list[Any]:
        draft = self._worker.get_draft_model()
        return [self._worker.model_runner.get_model(), *([] if draft is None else [draft])]


def is_packed(layer: Any) -> bool:
    """Whether vLLM computes this linear layer with a packed copy of its weights.

    Weights of other dimensions it packs in place (vLLM 0.27.1 and 0.32.0): there is no copy to free.
    """
    compute = getattr(layer, "cpu_linear", torch.nn.functional.linear)
    return compute is not torch.nn.functional.linear and layer.weight.ndim == 2


def describe(report: Report, verb: str) -> str:
    """The report as a sentence for the log."""
    if not report.tags:
        return "nothing to do"
    change = (report.resident_after - report.resident_before) / MEBIBYTE
    movement = f"{abs(change):.0f} MiB {'freed' if change < 0 else 'taken'}"
    return (
        f"{' and '.join(report.tags)}, {movement}, {report.file_bytes / MEBIBYTE:.0f} MiB {verb}, "
        f"{report.resident_after / MEBIBYTE:.0f} MiB resident, took {report.seconds:.2f} s"
    )


def regions_of(tensors: Iterable[Any]) -> tuple[Region, ...]:
    """The memory behind the tensors, each storage once: tensors may share one (tied embeddings)."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    regions = {
        storage.data_ptr(): Region(address=storage.data_ptr(), size=storage.nbytes(), owner=storage)
        for storage in storages
        if storage.nbytes()
    }
    return tuple(regions.values())


def tensors_in(entries: Iterable[Any]) -> Iterator[Any]:
    """All tensors in possibly nested lists: some layers have several caches."""
    for entry in entries:
        if isinstance(entry, torch.Tensor):
            yield entry
        else:
            yield from tensors_in(entry)


def keep_parameters() -> None:
    """Have linear layers keep their parameters beside the packed copies they compute with.

    vLLM packs the weights of linear layers into memory of oneDNN, out of reach, and empties the parameters:
    the greater part of a model could then neither be saved nor rebuilt. It looks the packing function up in
    its module at each use (vLLM 0.27.1 and 0.32.0).
    """
    original = layer_utils.dispatch_cpu_unquantized_gemm
    if getattr(original, "keeps_parameters", False):
        return

    def dispatch(layer: Any, remove_weight: bool) -> None:
        original(layer, remove_weight=False)

    dispatch.keeps_parameters = True  # type: ignore[attr-defined]
    layer_utils.dispatch_cpu_unquantized_gemm = dispatch
