"""The figures of one run: printed as they come, and written as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median


@dataclass
class Report:
    """All figures."""

    figures: list[dict[str, object]] = field(default_factory=list)

    def add(self, figure: str, subject: str, load: str, value: float, unit: str) -> None:
        """Keep and print one."""
        entry = {"figure": figure, "subject": subject, "load": load, "value": round(value, 3), "unit": unit}
        self.figures.append(entry)
        print(f"{figure:<22} {subject:<10} {load:<28} {value:>12,.2f} {unit}", flush=True)

    def add_rounds(self, figure: str, load: str, values: dict[str, list[float]], unit: str) -> None:
        """For each subject the median of its rounds."""
        for subject, measured in values.items():
            self.add(figure, subject, load, median(measured), unit)

    def write(self, path: Path) -> None:
        """Write them all as one list."""
        path.write_text(json.dumps(self.figures, indent=1) + "\n")
