"""Tells a healthy engine from one that answers garbage, by comparing with what it said after a cold start.
Pure.

A canary distinguishes garbage from health, not one kernel's rounding from another's: the limits are far
above what batching or another kernel changes, and far below what unloaded or corrupted weights do.
"""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any, Final

MEAN_LOGPROB_LIMIT: Final = 0.15
"""Largest mean difference of a prompt's log-probabilities, in nats."""
DECODED_LOGPROB_LIMIT: Final = 0.75
"""Largest difference of the decoded tokens' mean log-probability where the tokens differ, in nats."""
COSINE_LIMIT: Final = 0.99
"""Least cosine between an embedding and the recorded one."""
SCORE_LIMIT: Final = 0.05
"""Largest difference of a score, relative to the spread of the recorded ones and at least absolute."""
TEXT_LIKENESS_LIMIT: Final = 0.5
"""Least likeness of a decoded text to the recorded one where there are no log-probabilities."""
SHORTEST_REPETITION: Final = 4
"""From how many equal characters on a transcript is garbage."""
DECODED_TOKENS: Final = 16

PROMPTS: Final = (
    "The harbour lay quiet in the early morning. Fishermen mended their nets along the wall and talked "
    "about the weather, the price of diesel and the new ferry that would run twice a day from April on. "
    "In 1987 the old lighthouse had been replaced by a mast of steel, 31 metres high, whose lamp is "
    "visible for 18 nautical miles. Water boils at 100 degrees Celsius at sea level, but on a mountain of"
    " 3000 metres it boils at about 90 degrees, because the pressure of the air is lower there. def "
    "area(width, height): return width * height. The capital of France is Paris, the capital of Italy is "
    "Rome, and the capital of Spain is Madrid. One, two, three, four, five, six, seven, eight, nine, ten."
    " Le matin, elle ouvre la fenêtre et regarde la mer; am Abend schließt sie sie wieder. If every train"
    " that leaves at noon arrives two hours later, then a train that leaves at noon today arrives at two "
    "o'clock. SELECT name, price FROM products WHERE price < 20 ORDER BY name; The harbour master wrote "
    "all of this down in a large book, and at the end of the day he",
    "The capital of France is Paris, the capital of Italy is Rome, and the capital of Spain is",
)
"""Fixed texts for the log-probabilities; the second is for engines with a very short context."""

TEXTS: Final = (
    "A cat sleeps on the sofa.",
    "A kitten naps on the couch.",
    "Quarterly revenue grew by 12 percent.",
)
"""Fixed texts for embeddings; the first is also the query for scores."""


IMAGE_SIDE_PIXELS: Final = 112
"""Larger than the patches of the vision models that vLLM serves, small enough to cost nothing."""
QUESTION_ABOUT_IMAGE: Final = "Describe this picture in one sentence."

SOUND_RATE_HERTZ: Final = 16000
SOUND_SECONDS: Final = 2
_FORM_BOUNDARY: Final = "frontdoor-canary-form"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine said: the numbers that are compared, and the tokens that it decoded (text only)."""

    kind: str
    rows: tuple[tuple[float, ...], ...]
    tokens: tuple[str, ...] = ()


def requests_for(task: str, model: str, plain: bool) -> list[tuple[str, dict[str, Any]]]:
    """Path and body of the canary's request; the later ones are tried when the engine refuses the earlier.

    `plain` does without log-probabilities, for engines that don't survive them.
    """
    if task == "generate":
        # An engine may be told to give no log-probabilities (--max-logprobs 0): the text is enough then.
        kinds = (True,) if plain else (False, True)
        return [("/v1/completions", _completion(model, prompt, kind)) for kind in kinds for prompt in PROMPTS]
    if task == "embed":
        return [("/v1/embeddings", {"model": model, "input": list(TEXTS), "encoding_format": "float"})]
    # A classifier with several labels has no score (vLLM 0.27.1 and 0.32.0).
    return [
        ("/score", {"model": model, "text_1": TEXTS[0], "text_2": list(TEXTS)}),
        ("/classify", {"model": model, "input": list(TEXTS)}),
    ]


def _completion(model: str, prompt: str, plain: bool) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": DECODED_TOKENS, "temperature": 0, "seed": 0}
    return body if plain else {**body, "logprobs": 1, "prompt_logprobs": 1}


def sound_request(model: str) -> tuple[str, str, bytes]:
    """Path, content type and body of the question for models that only transcribe: a form with a sound."""
    fields = {"model": model, "response_format": "json", "temperature": "0"}
    parts = [
        f'--{_FORM_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{_FORM_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="canary.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    body = b"".join([*parts, head.encode(), sound(), f"\r\n--{_FORM_BOUNDARY}--\r\n".encode()])
    return "/v1/audio/transcriptions", f"multipart/form-data; boundary={_FORM_BOUNDARY}", body


@cache
def sound() -> bytes:
    """A WAV file: a gliding voice-like tone that rises and falls four times a second."""
    samples = bytearray()
    for at in range(SOUND_RATE_HERTZ * SOUND_SECONDS):
        seconds = at / SOUND_RATE_HERTZ
        phase = 2 * math.pi * (120 * seconds + 20 * seconds * seconds)
        tone = math.fsum(math.sin(number * phase) / number for number in range(1, 9))
        loudness = (1 - math.cos(8 * math.pi * seconds)) / 2
        samples += struct.pack("<h", int(8000 * loudness * tone))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SOUND_RATE_HERTZ)
        writer.writeframes(bytes(samples))
    return file.getvalue()


def image_request(model: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a question about a fixed picture; models that see nothing refuse it with 400."""
    content = [
        {"type": "image_url", "image_url": {"url": image_url()}},
        {"type": "text", "text": QUESTION_ABOUT_IMAGE},
    ]
    body = {"messages": [{"role": "user", "content": content}], "logprobs": True, "top_logprobs": 1}
    return "/v1/chat/completions", {
        "model": model,
        "max_tokens": DECODED_TOKENS,
        "temperature": 0,
        "seed": 0,
        **body,
    }


def image_url() -> str:
    """A picture as a `data:` URL: a red disc in front of a blue and green gradient."""
    side, rows = IMAGE_SIDE_PIXELS, bytearray()
    for y in range(side):
        rows.append(0)  # PNG: this row is not filtered
        for x in range(side):
            inside = (2 * x - side) ** 2 + (2 * y - side) ** 2 < side * side // 3
            rows += bytes((220, 30, 30)) if inside else bytes((20, 255 * x // side, 255 * y // side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*chunk) for chunk in chunks)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def read_image_answer(document: Any) -> Answer:
    """Take the tokens out of an answer about the picture; raises ValueError when it has another shape."""
    try:
        tokens = document["choices"][0]["logprobs"]["content"]
        values = tuple(float(token["logprob"]) for token in tokens)
        return Answer("image", (values,), tuple(str(token["token"]) for token in tokens))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the canary's answer about the picture has another shape: {error!r}") from None


def read_answer(task: str, document: Any) -> Answer:
    """Take the numbers out of an engine's answer; raises ValueError when it has another shape."""
    try:
        if task == "generate" and "text" in document:
            return Answer("transcript", (), (str(document["text"]),))
        if task == "generate":
            return _read_text(document["choices"][0])
        rows = document["data"]
        if task == "embed":
            return Answer("embed", tuple(tuple(float(value) for value in row["embedding"]) for row in rows))
        if rows and "probs" in rows[0]:
            return Answer("classify", tuple(tuple(float(value) for value in row["probs"]) for row in rows))
        return Answer("rerank", (tuple(float(row["score"]) for row in rows),))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the canary's answer has another shape: {error!r}") from None


def _read_text(choice: dict[str, Any]) -> Answer:
    if choice.get("logprobs") is None and choice.get("prompt_logprobs") is None:
        return Answer("plain", (), (str(choice["text"]),))
    positions = [position for position in choice["prompt_logprobs"] if position]
    # Each position holds the prompt's own token and, if it is another, the likeliest: the own one is the
    # least.
    prompt = tuple(min(float(entry["logprob"]) for entry in position.values()) for position in positions)
    decoded = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
    return Answer("generate", (prompt, decoded), tuple(str(token) for token in choice["logprobs"]["tokens"]))


def degeneracy(answer: Answer) -> str | None:
    """Why an answer can't come from a healthy engine; None when it can."""
    if answer.kind == "plain":
        text = "".join(answer.tokens)
        return f"the canary's answer is nothing but {text!r}" if len(set(text)) <= 1 else None
    if answer.kind == "transcript":  # that there is nothing to write down is a sound answer too
        text = "".join(answer.tokens)
        one = len(text) >= SHORTEST_REPETITION and len(set(text)) == 1
        return f"the canary's sound is written down as nothing but {text!r}" if one else None
    values = [value for row in answer.rows for value in row]
    if not values or not all(answer.rows):
        return "the canary's answer is empty"
    if not all(math.isfinite(value) for value in values):
        return "the canary's answer holds NaN or infinity"
    if answer.kind in ("generate", "image"):
        return _text_degeneracy(answer)
    if answer.kind == "classify":  # sure of one label for all texts is sound; sure of none isn't
        return None if all(any(row) for row in answer.rows) else "the canary's probabilities are zero"
    if len(set(answer.rows)) < len(answer.rows) or all(not any(row) for row in answer.rows):
        return "the canary's vectors are equal or zero"
    if answer.kind == "rerank" and len(set(answer.rows[0])) == 1:
        return "the canary's scores are all equal"
    return None


def _text_degeneracy(answer: Answer) -> str | None:
    if len(set(answer.tokens)) == 1 and len(answer.tokens) > 1:
        return f"the canary's answer is nothing but {answer.tokens[0]!r}"
    if len(answer.rows[0]) > 1 and len(set(answer.rows[0])) == 1:
        return "the canary's log-probabilities are all equal"
    return None


def difference(expected: Answer, answer: Answer) -> str | None:
    """In what an answer differs from the recorded one beyond the limits; None when it doesn't."""
    same_shape = [len(row) for row in expected.rows] == [len(row) for row in answer.rows]
    if expected.kind != answer.kind or (not same_shape and expected.kind not in ("generate", "image")):
        return "the canary's answer has another shape than the recorded one"
    if expected.kind in ("plain", "transcript"):
        alike = SequenceMatcher(None, "".join(expected.tokens), "".join(answer.tokens)).ratio()
        return None if alike >= TEXT_LIKENESS_LIMIT else f"the decoded text is only {alike:.0%} alike"
    if expected.kind == "generate":
        return _text_difference(expected, answer)
    if expected.kind == "image":
        return _image_difference(expected, answer)
    if expected.kind == "embed":
        least = min(_cosine(*rows) for rows in zip(expected.rows, answer.rows, strict=True))
        return None if least >= COSINE_LIMIT else f"an embedding's cosine to the recorded one is {least:.3f}"
    differences = [_score_difference(*rows) for rows in zip(expected.rows, answer.rows, strict=True)]
    return next((found for found in differences if found is not None), None)


def _text_difference(expected: Answer, answer: Answer) -> str | None:
    if len(expected.rows[0]) != len(answer.rows[0]):
        return "the canary's prompt has another number of tokens than recorded"
    apart = _mean([abs(a - b) for a, b in zip(expected.rows[0], answer.rows[0], strict=True)])
    if not apart <= MEAN_LOGPROB_LIMIT:
        return f"the prompt's log-probabilities differ by {apart:.3f} nats in the mean"
    if expected.tokens == answer.tokens:
        return None
    apart = abs(_mean(expected.rows[1]) - _mean(answer.rows[1]))
    return (
        None
        if apart <= DECODED_LOGPROB_LIMIT
        else f"the decoded tokens' log-probability differs by {apart:.3f}"
    )


def _image_difference(expected: Answer, answer: Answer) -> str | None:
    """Rounding lets two descriptions part on their way; they are alike all the same, or begin so."""
    alike = SequenceMatcher(None, "".join(expected.tokens), "".join(answer.tokens)).ratio()
    if alike >= TEXT_LIKENESS_LIMIT:
        return None
    apart = abs(_mean(expected.rows[0]) - _mean(answer.rows[0]))
    if expected.tokens[0] == answer.tokens[0] and apart <= DECODED_LOGPROB_LIMIT:
        return None
    return f"the description of the canary's picture is only {alike:.0%} like the recorded one"


def _score_difference(expected: Sequence[float], scores: Sequence[float]) -> str | None:
    limit = SCORE_LIMIT * max(1.0, max(expected) - min(expected))
    worst = max(abs(a - b) for a, b in zip(expected, scores, strict=True))
    return None if worst <= limit else f"a score differs by {worst:.3f}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
    return math.fsum(a * b for a, b in zip(one, other, strict=True)) / length if length else 0.0
