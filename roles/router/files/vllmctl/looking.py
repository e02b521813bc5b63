"""Commands that only look."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from vllmctl import containers, doctor, exposition, findings, http, names, tables
from vllmctl.errors import CommandError
from vllmctl.models import models as models_on_disk
from vllmctl.session import Json, Session, console, print_json, say, warn

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Interval = Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")]
Count = Annotated[int, typer.Option("--count", min=0, help="How many looks; 0: until interrupted.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example: vllmctl status --watch")(status)
    app.command(epilog="Example: vllmctl usage --json")(usage)
    app.command(epilog="Example: vllmctl top --interval 5")(top)
    app.command(epilog="Example: vllmctl events -f")(events)
    app.command(epilog="Example: vllmctl doctor || echo 'something is wrong'")(doctor_command)
    app.command("list", epilog="Example: vllmctl list")(list_command)


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again.")] = False,
    as_json: JsonOption = False,
    interval: Interval = 2.0,
    count: Count = 0,
) -> None:
    """Show what each service is doing."""
    session: Session = context.obj
    if as_json:
        _repeat(lambda: print_json(session.status()), watch, interval, count)
        return
    _show(lambda: _status_table(session), watch, interval, count)
    if not watch:
        found = names.with_device_names(session.status())
        for device in found["cordoned"]:
            say(f"{device} is cordoned: nothing on it is woken; vllmctl uncordon {device} ends it.")
        for service in found["services"]:
            name, conditions = service["name"], service["conditions"]
            if {"draining", "maintenance"} & set(conditions):
                say(f"{name}: its requests wait (vllmctl why {name}); vllmctl prove {name} ends it.")
            elif conditions:
                say(f"{name}: {service['reason']}")


def _status_table(session: Session) -> RenderableType:
    services = names.with_device_names(session.status())["services"]
    memory = containers.memory_by_service(containers.containers(session.box.instance))
    return tables.status(services, memory)


def usage(context: typer.Context, as_json: JsonOption = False) -> None:
    """Count requests and tokens by service and key.

    What was since the router started. Tokens are counted where engines report them: always in whole answers,
    in streams only for clients that ask with stream_options.include_usage.
    """
    found = _usage(context.obj)
    if as_json:
        print_json({"usage": [dataclasses.asdict(each) for each in found]})
    elif found:
        console().print(tables.usage(found))
    else:
        say("Nobody has asked anything since the router started.")


def _usage(session: Session) -> list[exposition.Usage]:
    return exposition.usage(http.get_text(f"{session.box.admin_url}/metrics"))


def top(context: typer.Context, interval: Interval = 2.0, count: Count = 0) -> None:
    """Show requests and tokens per second, live. Of answers that ended between two looks."""
    session: Session = context.obj
    before, since = _usage(session), time.monotonic()

    def look() -> RenderableType:
        nonlocal before, since
        time.sleep(interval)
        now, at = _usage(session), time.monotonic()
        table = tables.top(session.status()["services"], before, now, at - since)
        before, since = now, at
        return table

    _show(look, True, 0.0, count)


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what happens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the last hundred events. With -f also what happens, requests included."""
    address = f"{context.obj.box.admin_url}/admin/events"
    write: Callable[[Json], None] = lambda each: say(  # noqa: E731
        json.dumps(each, ensure_ascii=False) if as_json else tables.event(each)
    )
    coming = http.lines(address) if follow else iter(())
    next(coming, None)  # The stream is open: what happens between the past and it is not lost.
    past = http.get(f"{address}/recent")["events"]
    for event in past:
        write(event)
    for line in coming:
        if line.startswith("data: ") and (event := json.loads(line[len("data: ") :])) not in past:
            write(event)


def doctor_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """Examine the box; the exit code is a Nagios check's.

    Nothing is changed. 0: all is well, 1: warning, 2: critical, 3: unknown.
    """
    found = doctor.examine(context.obj.box)
    level = findings.worst(found)
    if as_json:
        listed = [{**dataclasses.asdict(each), "level": each.level.name} for each in found]
        print_json({"level": level.name, "findings": listed})
    else:
        say(findings.summary(found))
        console().print(tables.findings(found))
    raise typer.Exit(int(level))


doctor_command.__name__ = "doctor"


def list_command(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the models on this machine, and who serves them. With sizes and the verdicts on their weights."""
    session: Session = context.obj
    box = session.box
    try:
        view = http.get(f"{box.admin_url}/admin/evidence")
    except CommandError as error:
        warn(f"No verdicts: {error}")
        view = {"weights": []}
    verdicts = {each["model"]: each["verdict"] for each in view["weights"]}
    found = models_on_disk(box.models, verdicts, containers.containers(box.instance))
    if as_json:
        print_json({"models": [dataclasses.asdict(each) for each in found]})
    elif found:
        console().print(tables.models(found))
        for explanation in tables.verdicts_explained(found):
            say(explanation)
    else:
        say(f"There is no model in {box.models}.")


def _show(look: Callable[[], RenderableType], again: bool, interval: float, count: int) -> None:
    screen = console()
    if not again or not screen.is_terminal:
        _repeat(lambda: screen.print(look()), again, interval, count)
        return
    with Live(look(), console=screen, auto_refresh=False) as live:
        _repeat(lambda: live.update(look(), refresh=True), True, interval, max(0, count - 1) if count else 0)


def _repeat(act: Callable[[], None], again: bool, interval: float, count: int) -> None:
    done = 0
    while True:
        act()
        done += 1
        if not again or done == count:
            return
        time.sleep(interval)
