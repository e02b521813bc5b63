"""Commands that order something, and those about one service."""

from __future__ import annotations

import os
from typing import Annotated
from urllib.parse import quote

import typer

from vllmctl import http, names
from vllmctl.chatting import Conversation
from vllmctl.errors import CommandError
from vllmctl.measures import duration
from vllmctl.session import Json, Session, hint, print_json, say
from vllmctl.tables import event as event_line

EVERYTHING = "all"
PROVEN = ("matched", "recorded")
"""What the router says of a canary that was compared, or taken from an engine with good weights."""
MARGIN_SECONDS = 30.0
"""The router answers by itself when its time is up; this much later it is given up."""


def complete_service(context: typer.Context, incomplete: str) -> list[str]:
    """Names that a service may be called by, for the shell's completion."""
    try:
        parent = context.find_root().params
        services = Session(parent.get("instance")).status()["services"]
    except CommandError:
        return []
    known = [name for service in services for name in names.names_of(service)]
    return [name for name in known if name.casefold().startswith(incomplete.casefold())]


def complete_device(context: typer.Context, incomplete: str) -> list[str]:
    """Names of devices, for the shell's completion."""
    try:
        status = names.with_device_names(Session(context.find_root().params.get("instance")).status())
    except CommandError:
        return []
    known = sorted({device for service in status["services"] for device in service["devices"]})
    return [name for name in known if name.startswith(incomplete)]


DeviceName = Annotated[
    str,
    typer.Argument(metavar="DEVICE", help="As 'vllmctl status' names it.", autocompletion=complete_device),
]
ServiceName = Annotated[
    str,
    typer.Argument(metavar="SERVICE", help="Its name, alias or model.", autocompletion=complete_service),
]
ServiceOrAll = Annotated[
    str,
    typer.Argument(
        metavar="[SERVICE|all]", help="Its name, alias or model; or all.", autocompletion=complete_service
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the router's answer and nothing else.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1.0, help="How many seconds to wait.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(epilog="Example: vllmctl up text")(up)
    app.command(epilog="Example: vllmctl sleep text")(sleep)
    app.command(epilog="Example: vllmctl down all")(down)
    app.command(epilog="Example: vllmctl pin text")(pin)
    app.command(epilog="Example: vllmctl unpin text")(unpin)
    app.command(epilog="Example: vllmctl drain text --deadline 60")(drain)
    app.command(epilog="Example: vllmctl prove text")(prove)
    app.command(epilog="Example: vllmctl restart text")(restart)
    app.command(epilog="Example: vllmctl cordon gpu0")(cordon)
    app.command(epilog="Example: vllmctl uncordon gpu0")(uncordon)
    app.command(epilog="Example: vllmctl why text")(why)
    app.command(epilog="Example: vllmctl chat text 'What is the capital of France?'")(chat)


def up(
    context: typer.Context, service: ServiceName, timeout: Timeout = 900.0, as_json: JsonOption = False
) -> None:
    """Wake a service, and wait until it is proven awake."""
    _depth(context.obj, service, "wake", timeout, as_json)


def sleep(
    context: typer.Context, service: ServiceName, timeout: Timeout = 900.0, as_json: JsonOption = False
) -> None:
    """Put a service to sleep; the host's memory keeps its weights. Requests wake it again."""
    _depth(context.obj, service, "sleep", timeout, as_json)


def down(
    context: typer.Context,
    service: ServiceOrAll = EVERYTHING,
    timeout: Timeout = 900.0,
    as_json: JsonOption = False,
) -> None:
    """Offload a service, or all: the weights are discarded.

    Not those that are pinned. Requests wake it again.
    """
    _depth(context.obj, service, "offload", timeout, as_json)


def _depth(session: Session, wanted: str, order: str, timeout: float, as_json: bool) -> None:
    everything = wanted.casefold() == EVERYTHING
    services = session.status()["services"]
    chosen = services if everything else [names.resolve(services, wanted)]
    answers: list[Json] = []
    failures: list[str] = []
    for service in chosen:
        if everything and service["pinned"] and order != "wake":
            hint(f"{service['name']} is pinned and left alone.")
            continue
        hint(f"{service['name']}: {order} ordered, waiting ...")
        try:
            path = f"services/{service['name']}/{order}?timeout={timeout:g}"
            answers.append(session.order(path, timeout + MARGIN_SECONDS))
        except CommandError as error:
            if not everything:
                raise
            failures.append(str(error))
    if as_json:
        print_json({"services": answers} if everything else answers[0])
    else:
        for answer in answers:
            _say_depth(session, answer)
    if failures:
        raise CommandError(" ".join(failures))


def pin(context: typer.Context, service: ServiceName, as_json: JsonOption = False) -> None:
    """Wake a service and keep it awake: no timer puts it to sleep."""
    _simple(context.obj, service, "pin", as_json, "{service} is pinned ({depth}).")


def unpin(context: typer.Context, service: ServiceName, as_json: JsonOption = False) -> None:
    """Let a service sleep again when nobody asks."""
    _simple(context.obj, service, "unpin", as_json, "{service} is no longer pinned ({depth}).")


def _simple(session: Session, wanted: str, order: str, as_json: bool, sentence: str) -> None:
    before = session.service(wanted)
    name = before["name"]
    answer = session.order(f"services/{name}/{order}", http.QUICK_SECONDS)
    if as_json:
        print_json(answer)
    elif order == "unpin" and answer["pinned"]:
        say(f"{name} stays pinned: the deployment says so (pin: true).")
    elif order == "unpin" and not before["pinned"]:
        say(f"{name} was not pinned ({answer['depth'].replace('_', ' ')}).")
    else:
        say(sentence.format(service=name, depth=answer["depth"].replace("_", " ")))
        if order == "pin" and answer["depth"] != "awake":
            _say_cordoned(session, name)


def _say_depth(session: Session, answer: Json) -> None:
    """Where a service is now; and that its requests wait all the same, where it was drained before."""
    name = answer["service"]
    say(f"{name} is {answer['depth'].replace('_', ' ')}.")
    conditions = names.resolve(session.status()["services"], name)["conditions"]
    if {"draining", "maintenance"} & set(conditions):
        say(f"It is in maintenance as before: its requests wait until vllmctl prove {name} ends that.")


def _say_cordoned(session: Session, name: str) -> None:
    status = names.with_device_names(session.status())
    cordoned = set(status["cordoned"]).intersection(names.resolve(status["services"], name)["devices"])
    if cordoned:
        say(f"It isn't woken before its device is allowed again: vllmctl uncordon {min(cordoned)}")


def drain(
    context: typer.Context,
    service: ServiceName,
    deadline: Annotated[
        float, typer.Option(min=0.0, help="Seconds that answers under way get; then they are cut off.")
    ] = 120.0,
    limit: Annotated[
        float, typer.Option(min=0.0, help="Seconds after that until it serves again without 'prove'.")
    ] = 3600.0,
    as_json: JsonOption = False,
) -> None:
    """Hold new requests, to work on an engine; 'prove' ends it. Those in flight end first."""
    session: Session = context.obj
    name = session.service(service)["name"]
    path = f"services/{name}/drain?deadline={deadline:g}&limit={limit:g}"
    answer = session.order(path, deadline + MARGIN_SECONDS)
    if as_json:
        print_json(answer)
        return
    say(
        f"{name} is drained; requests in flight: {answer['in_flight']}, waiting: {answer['held']}. "
        f"When the work is done: vllmctl prove {name}"
    )


def prove(
    context: typer.Context, service: ServiceName, timeout: Timeout = 900.0, as_json: JsonOption = False
) -> None:
    """Compare a service with its canary; end its maintenance."""
    session: Session = context.obj
    name = session.service(service)["name"]
    hint(f"{name}: proving, waiting ...")
    answer = session.order(f"services/{name}/prove?timeout={timeout:g}", timeout + MARGIN_SECONDS)
    if as_json:
        print_json(answer)
    else:
        say(proof_sentence(answer))


def proof_sentence(answer: Json) -> str:
    """What a proof has shown: a service whose canary couldn't be compared serves again, unproven."""
    found = "is proven" if answer["canary"] in PROVEN else "serves again, and is not proven"
    return f"{answer['service']} {found}; canary: {answer['canary']}; level 2: {answer['level_2']}."


def restart(
    context: typer.Context, service: ServiceName, timeout: Timeout = 900.0, as_json: JsonOption = False
) -> None:
    """Restart a service's engine; its requests wait meanwhile."""
    session: Session = context.obj
    name = session.service(service)["name"]
    hint(f"{name}: restart ordered, waiting ...")
    answer = session.order(f"services/{name}/restart?timeout={timeout:g}", timeout + MARGIN_SECONDS)
    if as_json:
        print_json(answer)
    else:
        _say_depth(session, answer)


def cordon(context: typer.Context, device: DeviceName, as_json: JsonOption = False) -> None:
    """Wake nothing on a device until 'uncordon'. What is awake on it goes on."""
    answer, after = _cordon(context.obj, device, "cordon")
    if as_json:
        print_json(answer)
        return
    on_it = [each for each in after["services"] if answer["device"] in each["devices"]]
    awake = [each["name"] for each in on_it if each["depth"] == "awake"]
    rest = f" Awake on it, and serving: {', '.join(awake)}." if awake else ""
    say(f"{device} is cordoned: nothing is woken on it. When it is well: vllmctl uncordon {device}.{rest}")


def uncordon(context: typer.Context, device: DeviceName, as_json: JsonOption = False) -> None:
    """Let services on a device be woken again."""
    session: Session = context.obj
    before = session.status().get("cordoned", [])
    answer, _ = _cordon(session, device, "uncordon")
    if as_json:
        print_json(answer)
    else:
        say(
            f"{device} is no longer cordoned."
            if answer["device"] in before
            else f"{device} was not cordoned."
        )


def _cordon(session: Session, device: str, order: str) -> tuple[Json, Json]:
    """The answer, which has the device's key, and the status after it."""
    answer = session.order(f"devices/{quote(device, safe='')}/{order}", http.QUICK_SECONDS)
    return answer, session.status()


def why(context: typer.Context, service: ServiceName, as_json: JsonOption = False) -> None:
    """Explain why a service is as it is. What keeps it so, and what will happen next."""
    session: Session = context.obj
    name = session.service(service)["name"]
    answer = http.get(f"{session.box.admin_url}/admin/services/{name}/why")
    recent = http.get(f"{session.box.admin_url}/admin/events/recent")["events"]
    past = [each for each in recent if _is_about(each, name)][-5:]
    if as_json:
        print_json({**answer, "recent": past})
        return
    for sentence in answer["why"]:
        say(sentence)
    if past:
        say("Lately:")
        for each in past:
            say(f"  {event_line(each)}")


def _is_about(event: Json, name: str) -> bool:
    ordered = event["event"] == "admin" and f"/services/{name}/" in str(event.get("path"))
    return ordered or event.get("service") == name


def chat(
    context: typer.Context,
    service: ServiceName,
    prompt: Annotated[str | None, typer.Argument(help="What to ask; without it, a conversation.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    key_variable: Annotated[
        str, typer.Option(help="Environment variable that holds an API key, where the router wants one.")
    ] = "VLLMCTL_API_KEY",
) -> None:
    """Ask a service something, as a client would. The answer is streamed."""
    session: Session = context.obj
    found = session.service(service)
    if found["task"] != "generate":
        raise CommandError(f"{found['name']} is a service for '{found['task']}', which can't chat.")
    if found["depth"] != "awake":
        hint(f"{found['name']} is {found['depth'].replace('_', ' ')}; it is woken first (last time: "
             f"{duration(found['last_wake_seconds'])}) ...")  # fmt: skip
    conversation = Conversation(
        session.box.public_url, found["model"], max_tokens, os.environ.get(key_variable)
    )
    if prompt is not None and not prompt.strip():
        raise CommandError(f"Say what to ask; for example: vllmctl chat {service} 'Who are you?'")
    if prompt is not None:
        conversation.ask(prompt)
    else:
        conversation.run()
