"""The command line of vllmctl."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from vllmctl import logs, looking, ordering, pulling
from vllmctl.errors import CommandError
from vllmctl.session import Session

INTERRUPTED = 130

app = typer.Typer(
    name="vllmctl",
    help="Ask and steer the front door on this machine.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
looking.add_to(app)
ordering.add_to(app)
logs.add_to(app)
pulling.add_to(app)


@app.callback(epilog="Example: vllmctl --instance rehearsal status")
def start(
    context: typer.Context,
    instance: Annotated[
        str | None,
        typer.Option(
            envvar="FRONTDOOR_INSTANCE",
            help="Which front door, where several are on this machine.",
            show_default="default, or the only one",
        ),
    ] = None,
) -> None:
    """Keep what all commands need."""
    context.obj = Session(instance)


def main() -> int:
    """Run one command; 0 when it worked, else a sentence on standard error and another status."""
    try:
        status = app(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name="vllmctl")
    except CommandError as error:
        print(f"vllmctl: {error}", file=sys.stderr)
        return 1
    except TyperException as error:
        print(f"vllmctl: {error.format_message()} (vllmctl --help shows the commands)", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has seen enough; what Python would flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0
