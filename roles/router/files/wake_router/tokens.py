"""How many tokens a request took, read from what its engine answered, without touching the answer.

Engines report their usage at the end of an answer (vLLM 0.27.1 to 0.32.0: OpenAI's chat, completions,
embeddings and responses, Anthropic's messages); of a stream only if its client asked for it
(`stream_options.include_usage`) or the engine runs with `--enable-force-include-usage`. So the last few KiB
of an answer are kept, and looked at once when it has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CHUNKS_KEPT: Final = 4
"""The last chunks of a stream: usage, `[DONE]` and an empty one, with one to spare."""
BYTES_KEPT: Final = 4096
"""Of each chunk."""

_NAME: Final = b'"usage"'
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_PROMPT: Final = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})\b')
_COMPLETION: Final = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})\b')
_SEARCHED_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one request took."""

    prompt: int
    completion: int


def _last_usage(tail: bytes) -> bytes:
    """What follows the last usage's bracket; empty where there is none.

    Searching backwards for plain bytes is several times as fast as a pattern is.
    """
    place = tail.rfind(_NAME)
    while place >= 0:
        if found := _USAGE.match(tail, place):
            return tail[found.end() : found.end() + _SEARCHED_BYTES]
        place = tail.rfind(_NAME, 0, place)
    return b""


def reported_tokens(chunks: Iterable[bytes]) -> Tokens | None:
    """The last usage that the end of an answer reports; None when there is none.

    A model's own text can't be taken for it: within JSON strings quotes are escaped.
    """
    tail = b"".join(chunks)
    usage = _last_usage(tail)
    prompt, completion = _PROMPT.search(usage), _COMPLETION.search(usage)
    if prompt is None and completion is None:
        return None
    return Tokens(int(prompt.group(1)) if prompt else 0, int(completion.group(1)) if completion else 0)
