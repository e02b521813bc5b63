"""Which running engines have to be stopped: those on devices whose test *failed* in the present boot.

Missing, stale or suspect evidence stops nobody: it only refuses the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .devices import known_devices
from .evidence import Evidence
from .instance import LABEL_SERVICE
from .model import Desired, Discovered
from .render import LABEL_DEVICES
from .rules.gate import failed_control, failed_devices


def engines_to_stop(
    desired: Desired, discovered: Discovered, evidence: Evidence, containers: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """By container, the sentence on why it is stopped. `containers` are those of this instance."""
    devices = {device.key: device for device in known_devices(desired, discovered).values()}
    failed = failed_devices(evidence, devices.values())
    control = failed_control(evidence)
    found: dict[str, str] = {}
    for container in containers:
        labels = container.get("labels") or {}
        keys = [key for key in str(labels.get(LABEL_DEVICES, "")).split(",") if key]
        if not keys or LABEL_SERVICE not in labels or container.get("state") != "running":
            continue
        reasons = [f"{devices[key].name}: {failed[key]}" for key in keys if key in failed]
        if control is not None and len(keys) > 1:
            reasons.append(control)
        if reasons:
            found[str(container["name"])] = "; ".join(reasons)
    return found
