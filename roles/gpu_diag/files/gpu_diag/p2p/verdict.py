"""From what became of the words to verdicts: of each ordered pair, and of the set. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import permutations

from gpu_diag.p2p.classify import Cause, page_multiple
from gpu_diag.p2p.plan import Step
from gpu_diag.p2p.probe import MessageResult, StepResult
from gpu_diag.p2p.words import HOST

Json = dict[str, object]
Pair = tuple[int, int]

# Where two classes have as many words, the one that explains more comes first.
_EXPLAINING = (
    "misdirected",
    "mistranslated",
    "mirror",
    "crosstalk",
    "stale",
    "aborted",
    "zeroed",
    "bitflip",
    "garbage",
    "dropped",
)


@dataclass(frozen=True)
class Ending:
    """How the run ended: ``completed``, ``hang``, ``lost`` or ``died``, during which step, and a sentence."""

    kind: str
    step: Step | None = None
    sentence: str | None = None


@dataclass
class PairFacts:
    """What is known of one ordered pair."""

    source: int
    destination: int
    words: int = 0
    wrong: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    distances: Counter[int] = field(default_factory=Counter)
    arms: dict[str, list[int]] = field(default_factory=dict)
    read_back_wrong: int | None = None
    verdict: str = "inconclusive"

    def document(self) -> Json:
        """As it stands in a document; ``arms`` are words and wrong words by mode and method."""
        return {
            "source": self.source,
            "destination": self.destination,
            "verdict": self.verdict,
            "words": self.words,
            "wrong_words": self.wrong,
            "classes": dict(self.classes.most_common()),
            "distances": [
                {"bytes": distance, "words": count, "multiple_of": page_multiple(distance)}
                for distance, count in self.distances.most_common(8)
            ],
            "source_sees_wrong_words": self.read_back_wrong,
            "arms": {
                arm: {"words": words, "wrong_words": wrong} for arm, (words, wrong) in self.arms.items()
            },
        }


@dataclass(frozen=True)
class Judgement:
    """The verdict on a set of devices."""

    verdict: str
    class_: str | None
    classes: tuple[str, ...]
    pairs: tuple[PairFacts, ...]
    landed: Counter[tuple[int, int | None]]
    evidence: tuple[str, ...]


def judge(
    devices: int,
    offered: Callable[[int, int], bool],
    results: Sequence[StepResult],
    ending: Ending,
) -> Judgement:
    """The verdict on all ordered pairs of ``devices`` devices."""
    control = [result for result in results if result.step.mode == "control"]
    measured = [result for result in results if result.step.mode != "control"]
    pairs = {pair: PairFacts(*pair) for pair in permutations(range(devices), 2)}
    certain = {cause for result in measured for m in result.messages for cause in m.findings.causes}
    for result in measured:
        _count(result, pairs, certain)
    _give_pair_verdicts(pairs, offered, ending)
    landed: Counter[tuple[int, int | None]] = Counter()
    for result in results:
        landed.update(result.stray_findings.landed)
    verdict, class_, classes = _verdict(pairs.values(), control, ending, devices)
    sentences = (*_control_sentences(control), *_sentences(pairs.values(), ending), *_landing(landed))
    return Judgement(verdict, class_, classes, tuple(pairs.values()), landed, sentences)


def judge_control(devices: int, results: Sequence[StepResult], ending: Ending) -> Judgement:
    """The verdict on the path through the host's memory alone."""
    judgement = judge(devices, lambda a, b: False, results, ending)
    if judgement.verdict != "not_applicable" or devices < 2:
        return replace(judgement, pairs=())
    sentences = tuple(_control_sentences(results))
    return replace(judgement, verdict="clean", class_=None, pairs=(), evidence=sentences)


def _count(result: StepResult, pairs: dict[Pair, PairFacts], certain: Set[Cause]) -> None:
    classes = classes_of(result, certain)
    arm = f"{result.step.mode} {result.step.how}"
    for message_result in result.messages:
        message = message_result.message
        facts = pairs[message.source, message.destination]
        facts.words += message.count
        facts.wrong += message_result.wrong
        counts = facts.arms.setdefault(arm, [0, 0])
        counts[0] += message.count
        counts[1] += message_result.wrong
        facts.classes.update(classes[message.source, message.destination])
        facts.distances.update(message_result.findings.distances())
        if message_result.read_back_wrong is not None:
            facts.read_back_wrong = (facts.read_back_wrong or 0) + message_result.read_back_wrong


def classes_of(result: StepResult, certain: Set[Cause]) -> dict[Pair, Counter[str]]:
    """How many words of each class each pair of a step has, the sample scaled up to all wrong words.

    Words that never arrived and turned up elsewhere are ``misdirected``, and not ``dropped`` as well.
    """
    classes: dict[Pair, Counter[str]] = {}
    for message in result.messages:
        scaled = _scaled(message, message.findings.resolved(certain))
        if message.wrong and message.read_back_wrong == 0:
            scaled["mirror"] = message.wrong
        classes[message.message.source, message.message.destination] = scaled
    _add_strays(result, classes)
    return classes


def _scaled(message: MessageResult, sample: Counter[str]) -> Counter[str]:
    """The sample's classes scaled up to all wrong words; how many were dropped was counted."""
    arrived = sum(sample.values()) - sample["dropped"]
    factor = (message.wrong - message.dropped) / arrived if arrived else 0.0
    scaled = Counter({name: max(1, round(count * factor)) for name, count in sample.items()})
    scaled["dropped"] = message.dropped
    return +scaled


def _add_strays(result: StepResult, classes: dict[Pair, Counter[str]]) -> None:
    if not result.strays:
        return
    dropped = sum(counts["dropped"] for counts in classes.values())
    senders = [pair for pair in result.stray_findings.senders if pair in classes] or list(classes)
    for pair in senders:
        for name in result.stray_findings.classes:
            classes[pair][name] += max(1, result.strays // len(senders))
    if dropped <= result.strays:
        for counts in classes.values():
            del counts["dropped"]


def _give_pair_verdicts(
    pairs: dict[Pair, PairFacts], offered: Callable[[int, int], bool], ending: Ending
) -> None:
    hanging = _pairs_of(ending.step) if ending.kind == "hang" else set()
    for pair, facts in pairs.items():
        if not offered(*pair):
            facts.verdict = "not_applicable"
        elif facts.wrong or facts.classes:
            facts.verdict = "corrupt"
        elif pair in hanging:
            facts.verdict = "hang"
        elif ending.kind == "completed" and facts.words:
            facts.verdict = "clean"


def _pairs_of(step: Step | None) -> set[Pair]:
    return {(message.source, message.destination) for message in step.messages} if step else set()


def _verdict(
    pairs: Iterable[PairFacts], control: Sequence[StepResult], ending: Ending, devices: int
) -> tuple[str, str | None, tuple[str, ...]]:
    found: Counter[str] = Counter()
    for facts in pairs:
        found.update(facts.classes)
    classes = tuple(sorted(found))
    verdicts = {facts.verdict for facts in pairs}
    in_control = ending.step is not None and ending.step.mode == "control"
    if any(_is_wrong(result) for result in control):
        return "inconclusive", "control_failed", tuple(sorted(_control_classes(control)))
    if ending.kind == "hang":
        return ("inconclusive", "control_hang", classes) if in_control else ("hang", "hang", classes)
    if "corrupt" in verdicts:
        return "corrupt", _main_class(found), classes
    if ending.kind != "completed":
        return "inconclusive", {"lost": "device_lost"}.get(ending.kind, "probe_died"), classes
    if devices < 2:
        return "not_applicable", "one_device", classes
    if verdicts == {"not_applicable"}:
        return "not_applicable", "no_peer_access", classes
    return "clean", None, classes


def _is_wrong(result: StepResult) -> bool:
    return result.strays > 0 or any(message.wrong for message in result.messages)


def _control_classes(control: Sequence[StepResult]) -> set[str]:
    return {name for result in control for counts in classes_of(result, set()).values() for name in counts}


def _main_class(found: Counter[str]) -> str | None:
    # Words that never arrived, or that mean nothing, explain less than any other class beside them.
    return max(
        found,
        key=lambda name: (name not in ("dropped", "garbage"), found[name], -_EXPLAINING.index(name)),
        default=None,
    )


def _control_sentences(control: Sequence[StepResult]) -> Iterable[str]:
    wrong = [result for result in control if _is_wrong(result)]
    if wrong:
        names = ", ".join(sorted(_control_classes(wrong)))
        yield (
            f"The control arm failed ({names}): words were already wrong on the path through the host's "
            "memory, so nothing can be said about GPU to GPU, and that path can't be trusted either."
        )
    elif control:
        words = sum(result.step.words for result in control)
        yield f"The control arm is clean: {words:,} words through the host's memory, none wrong."


def _sentences(pairs: Iterable[PairFacts], ending: Ending) -> Iterable[str]:
    for facts in sorted(pairs, key=lambda one: (one.source, one.destination)):
        name = f"{facts.source}→{facts.destination}"
        if facts.verdict == "corrupt":
            classes = ", ".join(f"{name} {count:,}" for name, count in facts.classes.most_common())
            yield f"{name}: corrupt, {facts.wrong:,} of {facts.words:,} words wrong ({classes})."
        elif facts.verdict == "clean":
            yield f"{name}: clean, {facts.words:,} words, none wrong."
        elif facts.verdict == "not_applicable":
            yield f"{name}: the driver offers no peer access; a copy would go through the host unnoticed."
        else:
            yield f"{name}: {facts.verdict}, not tested to the end."
    if ending.sentence:
        yield ending.sentence


def _landing(landed: Counter[tuple[int, int | None]]) -> Iterable[str]:
    for (owner, distance), count in landed.most_common(5):
        where = "the host's pinned memory" if owner == HOST else f"the memory of GPU {owner}"
        if distance is None:
            yield f"Words turned up in {where}, where they don't belong ({count:,} in the sample)."
        else:
            multiple = page_multiple(distance)
            of = f", a multiple of {multiple}" if multiple else ""
            off = f"{distance:+,} bytes from their place{of}"
            yield f"Words turned up in {where} {off} ({count:,} in the sample)."
