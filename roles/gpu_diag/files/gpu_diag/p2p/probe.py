"""Carry out a plan on devices, and classify what arrived. No time, no files: results go to a callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpu_diag.devices.protocol import HOST_ARENA_WORDS, Devices
from gpu_diag.p2p.classify import Findings, classify, classify_strays
from gpu_diag.p2p.plan import Step
from gpu_diag.p2p.words import HOST, Message, guard_word

# So much is compared in one go: 64 MiB.
_CHUNK_WORDS = 8 << 20


@dataclass(frozen=True)
class MessageResult:
    """What became of one message: of ``wrong`` words ``dropped`` never arrived, ``sampled`` were
    classified."""

    message: Message
    wrong: int
    dropped: int
    sampled: int
    findings: Findings
    read_back_wrong: int | None


@dataclass(frozen=True)
class StepResult:
    """What became of a step: its messages, and what turned up where nothing may be written, by owner."""

    step: Step
    messages: tuple[MessageResult, ...]
    strays: int
    stray_findings: Findings = field(default_factory=Findings)


def run_steps(
    devices: Devices,
    steps: Sequence[Step],
    before: Callable[[int, Step], None],
    after: Callable[[int, StepResult], None],
) -> None:
    """Carry out all steps; stops behind the control arm where that failed: nothing can be learned then."""
    older: set[int] = set()
    control_failed = False
    for number, step in enumerate(steps):
        if control_failed and step.mode != "control":
            return
        before(number, step)
        result = run_step(devices, step, frozenset(older))
        older.update(message.nonce for message in step.messages)
        after(number, result)
        if step.mode == "control" and (result.strays or any(m.wrong for m in result.messages)):
            control_failed = True


def run_step(devices: Devices, step: Step, older: frozenset[int]) -> StepResult:
    """Guard all memory, put the messages into their sources, move them, and look at everything."""
    nonce = step.messages[0].nonce
    owners = range(len(devices.devices))
    for owner in owners:
        devices.fill(owner, 0, devices.arena_words, guard_word(nonce, owner, 0))
    devices.fill(HOST, 0, HOST_ARENA_WORDS, guard_word(nonce, HOST, 0))
    for message in step.messages:
        devices.fill(message.source, message.source_begin, message.count, message.first_word)
    devices.move(step.messages, step.how)
    results = tuple(_look_at(devices, message, older) for message in step.messages)
    strays, findings = _look_for_strays(devices, step, nonce)
    return StepResult(step, results, strays, findings)


def _look_at(devices: Devices, message: Message, older: frozenset[int]) -> MessageResult:
    findings, wrong, dropped, sampled = Findings(), 0, 0, 0
    for begin in range(message.begin, message.end, _CHUNK_WORDS):
        count = min(_CHUNK_WORDS, message.end - begin)
        first = message.first_word + begin - message.begin
        found = devices.differing(message.destination, begin, count, first)
        if not found.total:
            continue
        wrong += found.total
        guard = guard_word(message.nonce, message.destination, begin)
        dropped += count - devices.differing(message.destination, begin, count, guard).total
        sampled += found.positions.size
        findings.add(classify(message, found.positions, found.words, older))
    read_back = devices.read_back(message) if wrong else None
    return MessageResult(message, wrong, dropped, sampled, findings, read_back)


def _look_for_strays(devices: Devices, step: Step, nonce: int) -> tuple[int, Findings]:
    total, findings = 0, Findings()
    arenas = [(owner, devices.arena_words) for owner in range(len(devices.devices))]
    for owner, size in (*arenas, (HOST, HOST_ARENA_WORDS)):
        for begin, end, first_word in _untouched(step, owner, size, nonce):
            found = devices.differing(owner, begin, end - begin, first_word)
            total += found.total
            findings.add(classify_strays(nonce, owner, found.positions, found.words))
    return total, findings


def _untouched(step: Step, owner: int, size: int, nonce: int) -> list[tuple[int, int, int]]:
    """Parts of an arena that must be as they were filled: begin, end and the first word of each."""
    parts = [
        (m.source_begin, m.source_begin + m.count, m.first_word) for m in step.messages if m.source == owner
    ]
    used = [(begin, end) for begin, end, _ in parts]
    used += [(m.begin, m.end) for m in step.messages if m.destination == owner]
    position = 0
    for begin, end in sorted(used):
        if position < begin:
            parts.append((position, begin, guard_word(nonce, owner, position)))
        position = max(position, end)
    if position < size:
        parts.append((position, size, guard_word(nonce, owner, position)))
    return parts
