#!/usr/bin/env python3
"""vllmctl: what the operator asks of a running box, over the router's admin listener.

Standard library only, so that it runs with whatever Python the box has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOTS = Path("/opt/vllm-frontdoor")
TIMEOUT_SECONDS = 10.0
COLUMNS = ("SERVICE", "MODEL", "DEPTH", "SINCE", "IDLE", "IN FLIGHT", "HELD", "DEVICES", "LAST WAKE")


class CommandError(Exception):
    """A failure the operator can act on: its text is one sentence."""


def admin_url(instance: str) -> str:
    """The admin listener of an instance, read from the environment file its router was deployed with.

    Raises CommandError when the instance isn't deployed on this machine.
    """
    environment = ROOTS / instance / "router" / "router.env"
    try:
        lines = environment.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        known = sorted(path.name for path in ROOTS.glob("*") if path.is_dir())
        raise CommandError(
            f"The instance '{instance}' can't be read from {environment} ({error.strerror}); "
            f"instances on this machine: {', '.join(known) or 'none'}. Choose one with --instance."
        ) from error
    for line in lines:
        name, _, value = line.partition("=")
        if name == "ROUTER_ADMIN_ADDRESS":
            return f"http://{value.strip()}"
    raise CommandError(f"{environment} names no ROUTER_ADMIN_ADDRESS; run the site playbook again.")


def get_json(url: str) -> dict[str, Any]:
    """The JSON object that the admin listener answers; raises CommandError when it doesn't."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            answer = json.load(response)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(
            f"The router's admin listener {url} does not answer ({reason}); is its container running?"
        ) from error
    except json.JSONDecodeError as error:
        raise CommandError(f"What answers at {url} is not the router: it sends no JSON.") from error
    if not isinstance(answer, dict):
        raise CommandError(f"What answers at {url} is not the router: it sends no JSON object.")
    return answer


def duration(seconds: float | None) -> str:
    """A span of time for people: 42 s, 17 min, 3.5 h; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def status_row(service: dict[str, Any]) -> tuple[str, ...]:
    """One line of the status table."""
    return (
        str(service["name"]),
        str(service["model"]),
        str(service["depth"]),
        duration(service.get("since_seconds")),
        duration(service.get("idle_seconds")),
        str(service.get("in_flight", 0)),
        str(service.get("held", 0)),
        ", ".join(service.get("devices", [])),
        duration(service.get("last_wake_seconds")),
    )


def table(rows: list[tuple[str, ...]]) -> str:
    """Left-aligned columns, two blanks between them."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def status(arguments: argparse.Namespace) -> None:
    """Print what each service is doing."""
    answer = get_json(f"{admin_url(arguments.instance)}/admin/status")
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return
    print(table([COLUMNS, *(status_row(service) for service in answer["services"])]))
    for service in answer["services"]:
        if service.get("reason"):
            print(f"{service['name']}: {service['reason']}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="vllmctl", description="Ask and steer a front door.")
    root.add_argument("--instance", default=os.environ.get("FRONTDOOR_INSTANCE", "default"))
    commands = root.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "status", help="what each service is doing", epilog="example: vllmctl status"
    )
    command.add_argument(
        "--json", action="store_true", help="print the router's answer as JSON and nothing else"
    )
    command.set_defaults(run=status)
    return root


def main() -> int:
    """Run one command; 0 when it worked, 1 with a sentence on stderr when it didn't."""
    arguments = parser().parse_args()
    try:
        arguments.run(arguments)
    except CommandError as error:
        print(f"vllmctl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
