"""The command `logs`: hands over to Docker, which keeps the containers' output."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from vllmctl.containers import containers
from vllmctl.errors import CommandError
from vllmctl.ordering import complete_service
from vllmctl.session import Session

ROUTER = "router"
LINES = 100


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example: vllmctl logs -f 200 text")(logs)


def logs(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[N] SERVICE",
            help="How many lines (100), and whose: a name, alias or model, or 'router'.",
            autocompletion=complete_service,
        ),
    ],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is written.")] = False,
    lines: Annotated[int | None, typer.Option("-n", "--lines", min=1, help="The same as N.")] = None,
) -> None:
    """Show the last lines of an engine's log, or the router's. Needs the right to use Docker."""
    session: Session = context.obj
    count, wanted = read_words(words, lines)
    name = _container_service(session, wanted)
    command = ["docker", "logs", "--tail", str(count), *(["--follow"] if follow else [])]
    try:
        os.execvp("docker", [*command, session.box.container(name)])
    except OSError as error:
        raise CommandError(f"The program docker can't be run: {error.strerror}.") from None


def _container_service(session: Session, wanted: str) -> str:
    """Whose container it is. Where the router doesn't answer, Docker still knows the services' own names."""
    if wanted.casefold() == ROUTER:
        return ROUTER
    try:
        return str(session.service(wanted)["name"])
    except CommandError:
        if wanted in {each.service for each in containers(session.box.instance)}:
            return wanted
        raise


def read_words(words: list[str], lines: int | None = None) -> tuple[int, str]:
    """The number of lines and the service in `[N] SERVICE`; raises CommandError."""
    *before, service = words
    if not before:
        return lines or LINES, service
    if lines is not None:
        raise CommandError(f"Say how many lines once: N or --lines; for example: vllmctl logs 200 {service}")
    if len(before) > 1 or not before[0].isdecimal() or int(before[0]) < 1:
        raise CommandError(f"'{' '.join(words)}' is not [N] SERVICE; for example: vllmctl logs 200 text")
    return int(before[0]), service
