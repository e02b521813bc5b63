"""Other programs of this machine: docker and nvidia-smi, with sentences for what goes wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from vllmctl.errors import CommandError

SECONDS = 20.0


def output(command: Sequence[str], seconds: float = SECONDS) -> str:
    """What a program prints; raises CommandError."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise CommandError(f"The program {command[0]} is not on this machine.") from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"'{' '.join(command[:2])}' did not end within {seconds:.0f} s.") from None
    except OSError as error:
        raise CommandError(f"'{' '.join(command[:2])}' can't be run: {error.strerror}.") from None
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise CommandError(f"'{' '.join(command[:2])}' failed: {last}")
    return result.stdout


def attempt(command: Sequence[str]) -> str | None:
    """The same for what is only nice to know: None where it doesn't work."""
    try:
        return output(command)
    except CommandError:
        return None
