"""The page for people: tables, with bars of the times and a picture of the memory. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .figures import DEPTHS, STEPS, Measurement, Spread, device_sizes, host_sizes, plan_figures, spread, times
from .picture import PICTURE, picture
from .units import duration, size

BAR_CELLS = 40
_WORDS = {
    "start": "start (new process, canary asked)",
    "sleep": "awake → sleeping",
    "wake": "sleeping → awake",
    "offload": "awake → offloaded",
    "wake_from_offloaded": "offloaded → awake",
}


def page(measured: Sequence[Measurement], instance: str) -> str:
    """The whole page as Markdown."""
    parts = [
        f"# Calibration of the instance {instance}",
        "",
        "Each figure is the median of the rounds, with the least and the largest in brackets. The plan "
        "reads the files beside this page; `./box calibrate` measures anew. A figure counts for the very "
        "engine that it was measured on: the same model folder, image, split and kind of device.",
        "",
    ]
    if not measured:
        return "\n".join([*parts, "Nothing has been measured yet.", ""])
    for title, content in (
        ("Times", _times(measured)),
        ("Memory", _memory(measured)),
        ("What the plan takes", _plan(measured)),
        ("Level 2", _level_2(measured)),
        ("What this can't show", _limits(measured)),
    ):
        parts += [f"## {title}", "", *content, ""]
    return "\n".join(parts)


def _cell(found: Spread | None, unit: Callable[[float], str]) -> str:
    if found is None:
        return "not measured"
    if found.count == 1:
        return f"{unit(found.median)} (one round)"
    return f"{unit(found.median)} ({unit(found.least)} to {unit(found.largest)}, {found.count} rounds)"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(_escaped, line))} |" for line in lines]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _times(measured: Sequence[Measurement]) -> list[str]:
    rows = [
        [each.service, _WORDS[step], _cell(spread(times(each, step)), duration)]
        for each in measured
        for step in STEPS
    ]
    marks = [
        (f"{each.service} {_WORDS[step]}", spread(times(each, step))) for each in measured for step in STEPS
    ]
    return [*_table(["service", "step", "time"], rows), "", *bars(marks, duration)]


def _memory(measured: Sequence[Measurement]) -> list[str]:
    rows = []
    for each in measured:
        for depth in DEPTHS:
            host, device = spread(host_sizes(each, depth)), spread(device_sizes(each, depth))
            on_device = "no memory of its own (cpu)" if each.on_cpu else _cell(device, size)
            rows.append([each.service, depth, _cell(host, size), on_device])
    head = ["service", "depth", "host memory", "memory of the fullest GPU"]
    shown = [] if picture(measured) is None else ["", f"![Memory by service and depth, as bars]({PICTURE})"]
    return [*_table(head, rows), *shown]


def _plan(measured: Sequence[Measurement]) -> list[str]:
    rows = []
    for each in measured:
        figures = plan_figures(each)
        row = [size(figures[key]) for key in ("awake_bytes_per_device", "asleep_bytes_per_device")]
        host = size(figures["host_bytes_asleep"])
        rows.append([each.service, each.model, *(["0 MiB (cpu)"] * 2 if each.on_cpu else row), host])
    head = ["service", "model", "of each GPU, awake", "of each GPU, sleeping", "of the host"]
    note = (
        "The largest of all rounds counts here, not the median: what is planned has to fit. Only of what the "
        "host as a whole lost to a sleep it is the median."
    )
    return [note, "", *_table(head, rows)]


def _level_2(measured: Sequence[Measurement]) -> list[str]:
    rows = [[each.service, each.canary, each.level_2, each.measured_at] for each in measured]
    return _table(["service", "canary", "offloading by timer", "measured at (UTC)"], rows)


def _limits(measured: Sequence[Measurement]) -> list[str]:
    lines = [
        "- Times include the wait for the device's turn and the canary, as a request would meet them; other "
        "load on the machine shows in the spread.",
        "- A wake right after a sleep finds the model's files in the page cache. After hours asleep the disk "
        "may have to be read: level 2 takes longer then.",
    ]
    if any(each.on_cpu for each in measured):
        lines += [
            "- On CPU devices resident memory plays the GPU's part. There is no GPU memory, no pinned "
            "memory, no residue of a CUDA context and no copy over PCIe: neither sizes nor times say "
            "anything about a GPU.",
            "- Pages of the KV cache that no request has touched aren't resident. The plan's figure adds the "
            "whole cache; the table of memory doesn't.",
            "- At level 1 weights lie in a file of the container, not in the host's memory as on a GPU box: "
            "asleep the engine looks smaller than it would there.",
        ]
    if any(not each.on_cpu for each in measured):
        lines.append(
            "- Host memory is what /proc says of the engine's processes. Pinned memory that is missing there "
            "is counted by what the host as a whole lost meanwhile; others use the host too, so that part is "
            "rough."
        )
    return [*lines, *(f"- {each.service}: {note}" for each in measured for note in each.notes)]


def bars(marks: Sequence[tuple[str, Spread | None]], unit: Callable[[float], str]) -> list[str]:
    """Medians as bars of characters in a block, to one scale; what was not measured is left out."""
    known = [(label, found.median) for label, found in marks if found is not None]
    longest = max((value for _, value in known), default=0.0)
    if longest <= 0:
        return []
    width = max(len(label) for label, _ in known)
    lines = [
        f"{label:<{width}}  {'█' * cells(value, longest):<{BAR_CELLS}}  {unit(value)}"
        for label, value in known
    ]
    return ["```text", *lines, "```"]


def cells(value: float, longest: float) -> int:
    """How many of BAR_CELLS a bar fills; what isn't nothing fills one at least."""
    filled = round(BAR_CELLS * value / longest)
    return max(1, min(BAR_CELLS, filled)) if value > 0 else 0
