"""The allow-list: what of the OpenAI surface exists, and where a request names its model. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from wake_router.openai_errors import method_not_allowed, not_a_websocket, path_not_found


class Where(StrEnum):
    """Where a request names its model, or who answers it."""

    JSON = "json"
    FORM = "form"
    SOCKET = "socket"
    RESPONSE_ID = "response_id"
    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class Route:
    """A request that may pass. `path` is what an engine is sent: never what the client wrote."""

    where: Where
    path: str
    tasks: frozenset[str] = frozenset()
    name: str = ""
    """A model's name or a response's id, taken from the path."""


_GENERATING: Final = frozenset({"generate"})
_POOLING: Final = frozenset({"embed", "rerank"})
_ANY: Final = _GENERATING | _POOLING

_POSTS: Final = {
    route.path: route
    for route in (
        Route(Where.JSON, "/v1/chat/completions", _GENERATING),
        Route(Where.JSON, "/v1/completions", _GENERATING),
        Route(Where.JSON, "/v1/responses", _GENERATING),
        Route(Where.JSON, "/v1/messages", _GENERATING),
        Route(Where.JSON, "/v1/messages/count_tokens", _GENERATING),
        Route(Where.JSON, "/v1/embeddings", _POOLING),
        Route(Where.JSON, "/v1/score", _POOLING),
        Route(Where.JSON, "/score", _POOLING),
        Route(Where.JSON, "/v1/rerank", _POOLING),
        Route(Where.JSON, "/v2/rerank", _POOLING),
        Route(Where.JSON, "/rerank", _POOLING),
        Route(Where.JSON, "/classify", _POOLING),
        Route(Where.JSON, "/pooling", _POOLING),
        Route(Where.JSON, "/tokenize", _ANY),
        Route(Where.JSON, "/detokenize", _ANY),
        Route(Where.FORM, "/v1/audio/transcriptions", _GENERATING),
        Route(Where.FORM, "/v1/audio/translations", _GENERATING),
    )
}
"""Paths by which engines are asked, and the tasks whose engines have them (vLLM 0.32.0)."""

HEALTH_PATH: Final = "/health"
_GETS: Final = {"/v1/models": Route(Where.MODELS, ""), HEALTH_PATH: Route(Where.HEALTH, "")}
_MODEL: Final = re.compile(r"/v1/models/(.+)")
_RESPONSE: Final = re.compile(r"/v1/responses/([A-Za-z0-9_.-]{1,128})(/cancel)?")
_TRICKS: Final = re.compile(rb"%(?:2[ef5]|5c|00)|\\", re.IGNORECASE)

REALTIME: Final = Route(Where.SOCKET, "/v1/realtime", _GENERATING)
JSON_PATHS: Final = tuple(path for path, route in _POSTS.items() if route.where is Where.JSON)
FORM_PATHS: Final = tuple(path for path, route in _POSTS.items() if route.where is Where.FORM)


def find_route(method: str, path: str, raw_path: bytes) -> Route:
    """The route of a request, by its path decoded once; raises AnswerError 404, 405 or 426.

    What is encoded but needn't be (slashes, dots, backslashes, percent signs) is never a known path, except
    in the name of a model, which may hold a slash.
    """
    if (model := _MODEL.fullmatch(path)) is not None:
        _require(method, path, "GET")
        return Route(Where.MODEL, "", name=model.group(1))
    if _TRICKS.search(raw_path):
        raise path_not_found(method, path)
    if path in _POSTS:
        _require(method, path, "POST")
        return _POSTS[path]
    if path in _GETS:
        _require(method, path, "GET")
        return _GETS[path]
    if (response := _RESPONSE.fullmatch(path)) is not None:
        _require(method, path, "POST" if response.group(2) else "GET")
        return Route(Where.RESPONSE_ID, path, _GENERATING, response.group(1))
    if path == REALTIME.path:
        _require(method, path, "GET")
        raise not_a_websocket(path)
    raise path_not_found(method, path)


def _require(method: str, path: str, allowed: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise method_not_allowed(method, path, allowed)
