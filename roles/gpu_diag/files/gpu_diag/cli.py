"""The command line: ``python3 -m gpu_diag <command>``. Summary first; JSON on request, alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from gpu_diag import exits
from gpu_diag import watch as watch_command
from gpu_diag.evidence import EvidenceError, json_schema
from gpu_diag.hostfacts import command as host_command
from gpu_diag.integrity import command as integrity_command
from gpu_diag.p2p import command as p2p_command
from gpu_diag.report import command as report_command
from gpu_diag.weights import command as weights_command

_DEBUG = "GPU_DIAG_DEBUG"
_STATUSES = (
    "exit status: 0 clean, 1 degraded but handled, 2 corrupt, failed or hanging, 3 inconclusive or could not "
    "run, 64 wrong usage"
)


_COMMANDS: dict[str, tuple[ModuleType, str]] = {
    "p2p": (p2p_command, "check the paths between GPUs"),
    "integrity": (integrity_command, "check each GPU by itself"),
    "weights": (weights_command, "check the files of a model folder"),
    "watch": (watch_command, "follow the kernel log and mark evidence suspect"),
    "report": (report_command, "say what the evidence of this box means"),
    "host": (host_command, "show what the host says about itself"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: {message}\n")
        raise SystemExit(exits.USAGE)


def main(arguments: Sequence[str] | None = None, program: str = "gpu_diag") -> int:
    """Run one command; returns its exit status. Errors are sentences on stderr."""
    parsed = _parser(program).parse_args(arguments)
    if parsed.command == "schema":
        print(json.dumps(json_schema(), indent=2))
        return exits.CLEAN
    try:
        status: int = _COMMANDS[parsed.command][0].run(parsed)
        return status
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"{program} {parsed.command} needs the Python package {error.name}, which {sys.executable} "
            "doesn't have: install it, or run this inside the engine's image, which has it\n"
        )
    except exits.UsageError as error:
        sys.stderr.write(f"{program} {parsed.command}: {error}\n")
        return exits.USAGE
    except (exits.CouldNotRunError, EvidenceError) as error:
        sys.stderr.write(f"{program} {parsed.command}: {error}\n")
    except BrokenPipeError:
        # Whoever read the output has gone; nothing more can be said to them.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # noqa: BLE001 - a fault of the tool must not read like one of the machine
        _explain(error, program)
    except KeyboardInterrupt:
        sys.stderr.write(f"{program} {parsed.command}: interrupted, nothing was recorded\n")
    return exits.NOT_RUN


def _explain(error: Exception, program: str) -> None:
    sys.stderr.write(
        f"{program} itself is at fault ({type(error).__name__}: {error}); this says nothing about the "
        f"machine. Set {_DEBUG} to see where.\n"
    )
    if os.environ.get(_DEBUG):
        traceback.print_exception(error)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=program, description="Diagnostics of a GPU machine.", epilog=_STATUSES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, epilog=_STATUSES)
        module.add_arguments(command)
    commands.add_parser("schema", help="print the JSON Schema of the evidence documents")
    return parser
