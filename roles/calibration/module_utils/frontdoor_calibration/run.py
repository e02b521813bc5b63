"""Calibrates the services of an instance one after another, and keeps the files. All durations in seconds.

Before a service is touched, the depth that it is at is written down; whoever finds that record afterwards
(this run, the playbook's end, or the next run) brings the service back to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .drive import RESTING, CalibrationError, Drive, LeftAloneError, Outcome, Patience
from .engines import Engine
from .figures import Measurement, MeasurementError, from_document, newest, to_document
from .meter import Meter
from .page import page
from .picture import PICTURE, picture
from .router import Admin, RouterError, Service

PAGE = "CALIBRATION.md"
_MEASURED = "measured"
_UNDER_WAY = ".under-way"


@dataclass
class Report:
    """What a run did, in sentences. `problems` make it fail."""

    measured: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Files:
    """The folder `calibration` of an instance. Methods raise OSError."""

    folder: Path
    instance: str

    def under_way(self) -> dict[str, str]:
        """The depths that services were at before an earlier run touched them, and didn't bring back."""
        try:
            document = json.loads((self.folder / _UNDER_WAY).read_bytes())
            return {str(name): str(depth) for name, depth in document.items() if depth in RESTING}
        except (OSError, ValueError, AttributeError):
            return {}

    def remember(self, depths: Mapping[str, str]) -> None:
        """Write down what is to be brought back; nothing: all is as it was."""
        path = self.folder / _UNDER_WAY
        if depths:
            replace_file(path, json.dumps(depths).encode())
        else:
            path.unlink(missing_ok=True)

    def keep(self, measured: Measurement, for_the_plan: Mapping[str, Any]) -> None:
        """Write what the plan reads, and what the page shows."""
        name = f"{measured.service}.json"
        replace_file(self.folder / _MEASURED / name, _json(to_document(measured)))
        replace_file(self.folder / name, _json(for_the_plan))

    def write_page(self, services: Iterable[str]) -> None:
        """The page and the picture of all measurements of services that there still are."""
        found = [each for name in services if (each := self._measurement(name)) is not None]
        measured = newest([], found)
        if (drawn := picture(measured)) is not None:
            replace_file(self.folder / PICTURE, drawn.encode())
        replace_file(self.folder / PAGE, page(measured, self.instance).encode())
        if drawn is None:
            (self.folder / PICTURE).unlink(missing_ok=True)

    def _measurement(self, service: str) -> Measurement | None:
        """None where there is none that this version reads; it is measured again some day."""
        try:
            return from_document(json.loads((self.folder / _MEASURED / f"{service}.json").read_bytes()))
        except (OSError, ValueError, MeasurementError):
            return None


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file at once: a reader sees the old content or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@dataclass(frozen=True)
class Bench:
    """What calibrating needs. `engines` are containers by service, or the sentence why there is none;
    `plan_document` makes the file that the plan reads."""

    admin: Admin
    meter: Meter
    files: Files
    engines: Mapping[str, Engine | str]
    plan_document: Callable[[Engine, Measurement], Mapping[str, Any]]
    rounds: int
    patience: Patience


def give_back(admin: Admin, files: Files, patience: Patience) -> Report:
    """Bring back what an interrupted run left at another depth."""
    report, open_ones = Report(), files.under_way()
    for name, depth in dict(open_ones).items():
        try:
            drive = Drive(admin, name, _reads_nothing, patience)
            drive.parked = True  # nobody else parks a service that is being calibrated
            drive.restore(depth)
            report.measured.append(f"{name} was left by an interrupted calibration and is {depth} again.")
        except CalibrationError as error:
            report.problems.append(f"{error}.")
            continue
        del open_ones[name]
        files.remember(open_ones)
    return report


def _reads_nothing() -> Any:
    raise AssertionError("restoring measures nothing")


def choose(services: Mapping[str, Service], wanted: Iterable[str]) -> tuple[list[str], list[str]]:
    """The services to calibrate, all where none are named, and a sentence for each name that means none.
    Pure."""
    names = list(dict.fromkeys(wanted)) or list(services)
    unknown = [name for name in names if name not in services]
    known = ", ".join(services) or "none"
    sentences = [
        f"calibration_services names {name}, which isn't deployed; there are: {known}." for name in unknown
    ]
    return [name for name in names if name in services], sentences


def calibrate(bench: Bench, names: Iterable[str], services: Mapping[str, Service]) -> Report:
    """Calibrate services one after another; what fails for one leaves the others to be measured."""
    report = give_back(bench.admin, bench.files, bench.patience)
    for name in names:
        engine = bench.engines.get(
            name, f"{name} has no container of this instance on this machine; deploy again"
        )
        if isinstance(engine, str):
            report.problems.append(f"{engine}.")
            continue
        try:
            _calibrate_one(bench, services[name], engine, report)
        except LeftAloneError as error:
            report.left_alone.append(f"{error}.")
        except (CalibrationError, RouterError) as error:
            report.problems.append(f"{error}. No figures were written for {name}.")
    bench.files.write_page(services)
    return report


def _calibrate_one(bench: Bench, service: Service, engine: Engine, report: Report) -> None:
    name, gpus = service.name, () if engine.on_cpu else engine.devices
    drive = Drive(bench.admin, name, lambda: bench.meter.read(engine.pid, gpus), bench.patience)
    depth = drive.await_quiet().depth
    bench.files.remember({**bench.files.under_way(), name: depth})
    try:
        outcome = drive.measure(bench.rounds)
        measured = _measurement(service, engine, outcome)
        bench.files.keep(measured, bench.plan_document(engine, measured))
        times = "one round" if bench.rounds == 1 else f"{bench.rounds} rounds"
        report.measured.append(f"{name} was measured in {times}; level 2: {outcome.level_2}.")
    finally:
        try:
            drive.restore(depth)
            left = {other: was for other, was in bench.files.under_way().items() if other != name}
            bench.files.remember(left)
        except CalibrationError as error:
            report.problems.append(f"{error}.")


def _measurement(service: Service, engine: Engine, outcome: Outcome) -> Measurement:
    return Measurement(
        service=service.name,
        model=service.model,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        on_cpu=engine.on_cpu,
        rounds=tuple(outcome.rounds),
        level_2=outcome.level_2,
        canary=outcome.canary,
        kv_cache_bytes=engine.kv_cache_bytes,
        notes=tuple(outcome.notes),
    )
