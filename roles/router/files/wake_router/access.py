"""Who may ask, how much, and from which web pages. Keys are stored hashed; their names, never they, are
logged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wake_router.openai_errors import AnswerError

MINUTE_SECONDS: Final = 60.0
ALLOWED_HEADERS: Final = (
    b"authorization, content-type, prefer, x-api-key, x-request-id, x-waking-comments, anthropic-version"
)
"""What pages of allowed origins may send."""
_CONFIG: Final = ConfigDict(extra="forbid", frozen=True, strict=True)


class KeysError(ValueError):
    """The file of keys can't be used; the message says what is wrong where."""


class Key(BaseModel):
    """One named key. A limit of null is none."""

    model_config = _CONFIG

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="of the key, hexadecimal")]
    concurrent: int | None = Field(default=None, ge=1, description="requests at once")
    per_minute: int | None = Field(default=None, ge=1, description="requests in any 60 seconds")


class _KeysFile(BaseModel):
    model_config = _CONFIG

    schema_version: Literal[1]
    keys: tuple[Key, ...] = Field(strict=False)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the file of keys; raises KeysError."""
    try:
        return _KeysFile.model_validate(json.loads(path.read_bytes())).keys
    except OSError as error:
        raise KeysError(f"The keys {path} (ROUTER_API_KEYS_FILE) can't be read: {error.strerror}.") from None
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise KeysError(f"The keys {path} (ROUTER_API_KEYS_FILE) can't be used: {places}.") from None
    except ValueError:
        raise KeysError(f"The keys {path} (ROUTER_API_KEYS_FILE) can't be used: they aren't JSON.") from None


@dataclass(slots=True)
class _Use:
    now: int = 0
    begun: deque[float] = field(default_factory=deque)


class Gate:
    """Lets in requests with a known key, within its limits. Without keys it lets in everybody."""

    def __init__(self, keys: Iterable[Key] | None) -> None:
        self._keys = None if keys is None else tuple(keys)
        self._uses: dict[str, _Use] = {}

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return self._keys is None

    def replace_keys(self, keys: Iterable[Key]) -> None:
        """Use other keys from now on; what has been used so far still counts."""
        self._keys = tuple(keys)

    def identify(self, authorization: str | None, x_api_key: str | None) -> Key | None:
        """Whose key was presented; None when none is needed. Raises AnswerError 401."""
        if self._keys is None:
            return None
        presented = x_api_key if x_api_key is not None else _bearer(authorization)
        digest = hashlib.sha256(presented.encode()).hexdigest()
        found: Key | None = None
        for key in self._keys:
            # All are compared, each in constant time: how long it takes tells nothing.
            if hmac.compare_digest(key.sha256, digest):
                found = key
        if found is None:
            raise AnswerError(
                status=401,
                message="Incorrect API key provided." if presented else "You didn't provide an API key.",
                code="invalid_api_key",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        return found

    def enter(self, key: Key, now: float) -> None:
        """Count a request; raises AnswerError 429 when its key has no more left. `now` in monotonic
        seconds.
        """
        use = self._uses.setdefault(key.name, _Use())
        while use.begun and use.begun[0] <= now - MINUTE_SECONDS:
            use.begun.popleft()
        if key.concurrent is not None and use.now >= key.concurrent:
            raise _too_many(f"{key.concurrent} requests at once", 1.0)
        if key.per_minute is not None and len(use.begun) >= key.per_minute:
            wait = use.begun[-key.per_minute] + MINUTE_SECONDS - now
            raise _too_many(f"{key.per_minute} requests per minute", wait)
        use.now += 1
        use.begun.append(now)

    def leave(self, key: Key) -> None:
        """The request has ended."""
        self._uses[key.name].now -= 1


def _bearer(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _too_many(limit: str, wait_seconds: float) -> AnswerError:
    seconds = max(1, int(wait_seconds + 0.999))
    return AnswerError(
        status=429,
        message=f"This key may make {limit}; retry in {seconds} s",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=((b"retry-after", str(seconds).encode()),),
    )


class Origins:
    """Which web pages may read answers (CORS)."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed

    def refuses(self, origin: str | None) -> bool:
        """Whether a page of this origin may not open a websocket, for which browsers ask nobody."""
        return origin is not None and "*" not in self._allowed and origin.lower() not in self._allowed

    def headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """What an answer to this origin carries."""
        if not self._allowed:
            return []
        vary = (b"vary", b"Origin")
        if origin is None or self.refuses(origin):
            return [vary]
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            vary,
        ]

    def preflight(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """What the answer to a preflight of this origin carries; empty when it isn't allowed."""
        headers = self.headers(origin)
        if len(headers) < 2:
            return []
        return [
            *headers,
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", b"600"),
        ]
