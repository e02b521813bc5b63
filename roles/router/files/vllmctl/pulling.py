"""The command `pull`: a model from the hub into the models' folder."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from vllmctl.errors import CommandError
from vllmctl.looking import JsonOption
from vllmctl.session import Json, Session, hint, print_json, say

TOKEN = "HF_TOKEN"
SAY_AGAIN_SECONDS = 10.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(epilog="Example: vllmctl pull Qwen/Qwen3-8B")(pull)


def complete_repository(context: typer.Context, incomplete: str) -> Iterator[str]:
    """Repositories that were pulled before, for the shell; none where nobody can be asked."""
    try:
        models = Session(context.find_root().params.get("instance")).box.models
    except CommandError:
        return
    for path in sorted(models.glob(".pulled/*.json")):
        try:
            name = str(json.loads(path.read_text(encoding="utf-8"))["repository"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name.startswith(incomplete):
            yield name


def pull(
    context: typer.Context,
    repository: Annotated[
        str,
        typer.Argument(
            metavar="HF_REPO", help="The model on the hub, as OWNER/NAME.", autocompletion=complete_repository
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="Name of its folder; otherwise the repository's last part."),
    ] = "",
    revision: Annotated[
        str, typer.Option("--revision", help="Branch, tag or commit; otherwise the hub's main branch.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Download a model from the hub and check it.

    Its files and weights are checked, then it is put in place. What broke off goes on when it is ordered
    again; of a model that was pulled before, files that are missing or altered are fetched anew. Needs the
    right to use Docker and to write into the models' folder. A token for the hub is taken from HF_TOKEN in
    the environment (sudo --preserve-env=HF_TOKEN vllmctl pull ...).
    """
    # What only pulling needs is imported here: it takes time, and completion is to be quick.
    from vllmctl.hub import Order, fetch

    session: Session = context.obj
    # Taken out of the environment, so that no program started from here has it in its own.
    token = os.environ.pop(TOKEN, "").strip()
    order = Order(repository, name or repository.rstrip("/").rsplit("/", 1)[-1], revision, token)
    shown = Progress(quiet=as_json)
    try:
        found = fetch(session.box, order, shown)
    except KeyboardInterrupt:
        shown.end()
        hint("A download that has begun goes on by itself; the same command again shows how far it is.")
        raise
    finally:
        shown.end()
    if as_json:
        print_json(found)
    else:
        _tell(found)


def _tell(found: Json) -> None:
    for path in found["kept_aside"]:
        say(f"kept aside: {path}")
    there = (
        f"model {found['model']}: nothing to do, {found['repository']} is there at commit {found['commit']}"
    )
    say(f"{found['done'] or there}.")
    say(f"{found['folder']}: weights {found['verdict']}. A service uses it with 'model: {found['model']}'.")


class Progress:
    """Shows how far it is: on a terminal in one line, elsewhere in a line now and then, or not at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._said, self._said_at = "", -SAY_AGAIN_SECONDS

    def __call__(self, words: str) -> None:
        """Show it, where it is news."""
        if words == self._said:
            return
        if self._terminal:
            sys.stderr.write(f"\r\x1b[2K{words}")
            sys.stderr.flush()
        elif self._quiet or time.monotonic() - self._said_at < SAY_AGAIN_SECONDS:
            return
        else:
            say(words)
            self._said_at = time.monotonic()
        self._said = words

    def end(self) -> None:
        """Leave the terminal's line to what comes next."""
        if self._terminal and self._said:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._said = ""
