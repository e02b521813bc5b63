"""A conversation with a model through the front door's public listener."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from vllmctl import http
from vllmctl.errors import CommandError

Json = dict[str, Any]

_KEY_ADVICE = (
    "The router wants an API key: put one into VLLMCTL_API_KEY "
    "(or name another variable with --key-variable)."
)


class Conversation:
    """Keeps what was said; every answer is written while it comes."""

    def __init__(self, public_url: str, model: str, max_tokens: int, key: str | None) -> None:
        self._url = f"{public_url}/v1/chat/completions"
        self._model = model
        self._max_tokens = max_tokens
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._messages: list[Json] = []

    def ask(self, prompt: str) -> None:
        """Ask once; raises CommandError, also where the engine breaks off in mid-answer."""
        self._messages.append({"role": "user", "content": prompt})
        body = {
            "model": self._model,
            "messages": self._messages,
            "max_tokens": self._max_tokens,
            "stream": True,
        }
        answer: list[str] = []
        for text in deltas(self._lines(body)):
            answer.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        self._messages.append({"role": "assistant", "content": "".join(answer)})

    def _lines(self, body: Json) -> Iterator[str]:
        try:
            yield from http.lines(self._url, body, self._headers)
        except http.RefusedError as error:
            if error.status != HTTPStatus.UNAUTHORIZED:
                raise
            raise CommandError(f"{error} {_KEY_ADVICE}") from None

    def run(self) -> None:
        """Ask line by line what is typed (or piped in); raises CommandError where nothing is piped in."""
        watched = sys.stdin.isatty()
        while True:
            if watched:
                sys.stderr.write("> ")
                sys.stderr.flush()
            line = sys.stdin.readline()
            if not line and not watched and not self._messages:
                raise CommandError("Nothing was asked: the input was empty.")
            if not line:
                return
            if line.strip():
                self.ask(line.strip())


def deltas(lines: Iterator[str]) -> Iterator[str]:
    """The pieces of text in a stream of chat completion chunks; raises CommandError for an error in it."""
    ended = False
    for line in lines:
        if not line.startswith("data: "):
            continue
        content = line[len("data: ") :]
        if content == "[DONE]":
            ended = True
            continue
        chunk = json.loads(content)
        if "error" in chunk:
            raise CommandError(str(chunk["error"].get("message", "The engine broke off.")))
        for choice in chunk.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield str(text)
    if not ended:
        raise CommandError("The answer broke off before its end.")
