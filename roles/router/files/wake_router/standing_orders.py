"""What people and deployments have ordered until further notice, on disk: cordoned devices, parked services.

One file per order, and the order stands while its file exists: a damaged file is still a cordon, and still
parks its service. Forgetting one is the dangerous mistake: a cordoned device may be one that miscalculates,
and a parked service may be about to be exchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from wake_router.durable import read_json, remove_file, replace_file
from wake_router.service_state import SOMEBODY

SCHEMA_VERSION: Final = 1
PARKED_UNKNOWN_SECONDS: Final = 3600.0
"""How long a service stays parked whose file doesn't say it any more; as long as an order without a limit."""


@dataclass(frozen=True, slots=True)
class Parking:
    """For how many seconds from now a service is parked, and who has ordered it."""

    seconds: float
    by: str = SOMEBODY


class StandingOrders:
    """The files under one folder. Times on the disk are the wall clock's: no other survives a reboot."""

    def __init__(self, folder: Path, wall: Callable[[], float]) -> None:
        self._cordons = folder / "cordons"
        self._parkings = folder / "parkings"
        self._wall = wall

    # ---- devices

    def cordoned(self) -> frozenset[str]:
        """Every device with a cordon."""
        try:
            names = [path.name for path in self._cordons.iterdir()]
        except OSError:
            return frozenset()
        return frozenset(unquote(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def cordon(self, device: str) -> None:
        """On the disk when this returns; raises DurableWriteError."""
        document = {"schema_version": SCHEMA_VERSION, "device": device, "since": self._wall()}
        replace_file(self._cordon(device), json.dumps(document).encode())

    def uncordon(self, device: str) -> None:
        """Forget a cordon, if there is one; raises DurableWriteError."""
        remove_file(self._cordon(device))

    def _cordon(self, device: str) -> Path:
        return self._cordons / f"{quote(device, safe=':')}.json"

    # ---- services

    def park(self, service: str, parking: Parking | None) -> None:
        """Keep that a service is parked; None: not any more. Raises DurableWriteError."""
        if parking is None:
            remove_file(self._parking_file(service))
            return
        document = {
            "schema_version": SCHEMA_VERSION,
            "until": self._wall() + parking.seconds,
            "seconds": parking.seconds,
            "by": parking.by,
        }
        replace_file(self._parking_file(service), json.dumps(document).encode())

    def parking(self, service: str) -> Parking | None:
        """For how long a service is still parked, never longer than it was ordered; None: it isn't."""
        try:
            document = read_json(self._parking_file(service))
            if document["schema_version"] != SCHEMA_VERSION:
                return Parking(PARKED_UNKNOWN_SECONDS)
            left = min(float(document["until"]) - self._wall(), float(document["seconds"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return Parking(PARKED_UNKNOWN_SECONDS)
        by = document.get("by")  # a router of an earlier release has not kept it
        return Parking(left, str(by or SOMEBODY)) if left > 0 else None

    def _parking_file(self, service: str) -> Path:
        return self._parkings / f"{service}.json"
