"""What an engine's processes hold, read from /proc and from nvidia-smi. Sizes in bytes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .figures import Reading

# Without persistence mode nvidia-smi initialises each GPU first.
_NVIDIA_SMI_SECONDS = 120.0
_MIB = 2**20
_KIB = 2**10


class MeterError(Exception):
    """It can't be measured here; the message is a sentence."""


class Meter:
    """Looks at one machine. Every method raises MeterError."""

    def __init__(self, proc: Path = Path("/proc"), nvidia_smi: Sequence[str] = ("nvidia-smi",)) -> None:
        self._proc = proc
        self._nvidia_smi = tuple(nvidia_smi)

    def read(self, pid: int, gpus: Sequence[str]) -> Reading:
        """Memory of a process with all its descendants, in the host's memory and on the GPUs by UUID."""
        family = descendants(pid, self._parents())
        host = sum(self._resident(each) for each in family)
        if not host:
            raise MeterError(f"the process {pid} and its children hold no memory; is it gone?")
        devices = self._on_gpus(family, gpus) if gpus else {}
        return Reading(host=host, available=self._available(), devices=devices)

    def gpu_names(self) -> dict[str, str]:
        """By UUID, what each GPU calls itself."""
        return dict(_pairs(self._ask("--query-gpu=uuid,name")))

    def _on_gpus(self, family: set[int], gpus: Sequence[str]) -> dict[str, int]:
        return used_by(family, gpus, self._ask("--query-compute-apps=pid,gpu_uuid,used_gpu_memory"))

    def _ask(self, query: str) -> str:
        command = [*self._nvidia_smi, query, "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise MeterError(f"nvidia-smi did not answer within {_NVIDIA_SMI_SECONDS:g} s") from None
        except OSError as error:
            raise MeterError(f"nvidia-smi can't be run: {error.strerror}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise MeterError(f"nvidia-smi failed: {said[-1] if said else 'no reason given'}")
        return done.stdout

    def _parents(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for stat in self._proc.glob("[0-9]*/stat"):
            try:
                text = stat.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            found[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
        return found

    def _resident(self, pid: int) -> int:
        """Its proportional share, so that what processes share counts once, and what is swapped out."""
        try:
            lines = (self._proc / str(pid) / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0  # it has ended meanwhile
        except OSError as error:
            raise MeterError(
                f"/proc/{pid}/smaps_rollup can't be read ({error.strerror}): this needs `become: true`"
            ) from error
        return sum(_kibibytes(line) for line in lines if line.startswith(("Pss:", "SwapPss:")))

    def _available(self) -> int:
        lines = (self._proc / "meminfo").read_text().splitlines()
        return sum(_kibibytes(line) for line in lines if line.startswith("MemAvailable:"))


def _kibibytes(line: str) -> int:
    return int(line.split()[1]) * _KIB


def _pairs(listing: str) -> Iterable[tuple[str, str]]:
    for line in listing.splitlines():
        first, comma, rest = line.partition(",")
        if comma:
            yield first.strip(), rest.strip()


def descendants(pid: int, parents: Mapping[int, int]) -> set[int]:
    """A process with all that came of it; `parents` is the parent of each. Pure."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    family: set[int] = set()
    todo = [pid]
    while todo:
        each = todo.pop()
        if each not in family:
            family.add(each)
            todo += children.get(each, [])
    return family


def used_by(family: Iterable[int], gpus: Sequence[str], listing: str) -> dict[str, int]:
    """By UUID, what processes hold of GPUs, from the lines `pid, uuid, MiB` of nvidia-smi. Pure.

    Raises MeterError where it doesn't say: a figure of 0 would be believed.
    """
    wanted, used = set(family), dict.fromkeys(gpus, 0)
    seen: set[str] = set()
    for line in listing.splitlines():
        pid, uuid, mebibytes = ([part.strip() for part in line.split(",")] + [""] * 3)[:3]
        if not pid.isdecimal() or int(pid) not in wanted or uuid not in used:
            continue
        if not mebibytes.isdecimal():
            raise MeterError(f"nvidia-smi doesn't say how much of {uuid} a process holds ({mebibytes})")
        used[uuid] += int(mebibytes) * _MIB
        seen.add(uuid)
    if missing := [uuid for uuid in gpus if uuid not in seen]:
        raise MeterError(f"nvidia-smi shows no process of the engine on {', '.join(missing)}")
    return used
