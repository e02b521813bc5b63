"""What vLLM calls in each of its processes (entry point group `vllm.general_plugins`)."""

from typing import Any

WORKER = "frontdoor_cpu_sleep.worker.SleepingCPUWorker"


def register() -> None:
    """Have vLLM's CPU platform take our worker, unless `--worker-cls` names another.

    Only the worker's name is set here: the processes that run no worker need not import it. vLLM may call
    this several times in one process.
    """
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__
    if getattr(original, "chooses_sleeping_worker", False):
        return

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        choose_worker(vllm_config.parallel_config)
        original(cls, vllm_config)

    check_and_update_config.chooses_sleeping_worker = True  # type: ignore[attr-defined]
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def choose_worker(parallel_config: Any) -> None:
    """Set our worker where vLLM would choose one itself ("auto" in vLLM 0.27.1 and 0.32.0)."""
    if parallel_config.worker_cls == "auto":
        parallel_config.worker_cls = WORKER
