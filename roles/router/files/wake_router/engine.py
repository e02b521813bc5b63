"""Client of one vLLM server and of the launcher beside it (vLLM 0.27.1 to 0.32.0).

The sleep routes answer with an empty body up to 0.31 and with JSON from 0.32 on; neither is believed, only
what `/is_sleeping` says afterwards is. `/sleep` and `/wake_up` take their arguments from the query only.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from wake_router import canary
from wake_router.clock import Clock
from wake_router.lifecycle import Presence, Step

QUICK_SECONDS: Final = 5.0
"""For calls that a healthy engine answers at once."""

CANARY_REQUEST_ID: Final = "frontdoor-canary"
"""By which an engine's log tells the router's own questions from clients'."""

LAUNCHER_SECONDS: Final = 15.0
"""For the launcher to take an order; it answers when the engine is on its way down."""

MEASURE_SECONDS: Final = 30.0
"""For the launcher to measure: nvidia-smi may take 10 s, and the kernel walks the engine's page tables."""

RESET_PAUSES_SECONDS: Final = (0.2, 1.0, 2.0)
"""After each try to reset the prefix cache that didn't work."""

_START_TIME: Final = re.compile(rb"^process_start_time_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)


_CORRUPTED: Final = re.compile(rb"^vllm:corrupted_requests_total(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_JSON_TYPE: Final = "application/json"
_NOT_FINITE: Final = b"not JSON compliant"
"""How vLLM 0.32.0 answers (with 400) when its answer would hold NaN."""
_NO_MEMORY: Final = re.compile(
    rb"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|less than desired GPU memory", re.IGNORECASE
)
"""What is in the answer (500) to a wake that doesn't find enough memory: vLLM 0.27.1 and 0.32.0 say `Call to
wake_up method failed: CUDA Error: out of memory at ...`, PyTorch `CUDA out of memory. Tried to allocate ...`.
"""
_NOT_OFFERED: Final = frozenset({400, 404, 405, 422, 501})


class EngineError(Exception):
    """A call to an engine failed; the message is a sentence."""


class EngineUnreachableError(EngineError):
    """Nobody listens at the engine's address."""


class EngineBrokenOffError(EngineUnreachableError):
    """The connection ended before an answer: the engine has died, or a kept connection was just closed."""


class EngineSlowError(EngineError):
    """The engine took the call but didn't answer in time. Slow is not dead."""


class EngineOutOfMemoryError(EngineError):
    """The engine's devices have too little free memory for the call."""


class CanaryUnavailableError(EngineError):
    """The engine doesn't offer what the canary asks for."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at an engine showed. `incarnation` and `asleep` are None where they couldn't be seen.

    `born_here`: this incarnation began after this router began to watch it.
    """

    presence: Presence
    incarnation: str | None = None
    asleep: bool | None = None
    born_here: bool = False


@dataclass(frozen=True, slots=True)
class _Incarnation:
    name: str
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long engine calls may take, in seconds."""

    connect: float = 5.0
    sleep: float = 300.0
    wake: float = 600.0
    reload: float = 1800.0
    canary: float = 120.0


class Engine:
    """One vLLM server."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        launcher_url: str | None,
        timeouts: Timeouts,
        clock: Clock,
    ) -> None:
        self._session = session
        self._base_url = base_url
        self._launcher_url = launcher_url
        self._timeouts = timeouts
        self._clock = clock
        self._watched_since = clock.monotonic()

    async def look(self) -> Look | None:
        """See whether the engine is there, which incarnation it is and whether it sleeps; None: can't tell
        now.
        """
        watched = self._clock.monotonic() - self._watched_since
        try:
            word = await self._launchers_word()
            if isinstance(word, Presence):
                return Look(word)
            status, _ = await self._call("GET", f"{self._base_url}/health", QUICK_SECONDS)
            if status != 200:
                return Look(Presence.ABSENT)
            engine = word or _Incarnation(await self._start_time())
            born_here = engine.age_seconds is not None and engine.age_seconds < watched
            return Look(Presence.UP, engine.name, await self._asleep_or_slow(), born_here)
        except EngineUnreachableError:
            return Look(Presence.ABSENT)
        except EngineError:
            return None

    async def _launchers_word(self) -> _Incarnation | Presence | None:
        """The incarnation that the launcher names, or that the engine isn't up; None without a launcher."""
        if self._launcher_url is None:
            return None
        status, body = await self._call("GET", f"{self._launcher_url}/state", QUICK_SECONDS)
        state = _json(body)
        if status != 200 or not isinstance(state, dict):
            raise EngineError(f"The launcher at {self._launcher_url} answered {status} instead of its state.")
        if state.get("phase") in ("waiting_for_devices", "starting", "stopping"):
            return Presence.BOOTING
        incarnation = state.get("incarnation")
        if not isinstance(incarnation, str) or not incarnation:
            raise EngineError(f"The launcher at {self._launcher_url} names no incarnation.")
        age = state.get("age_seconds")  # launchers of older releases don't tell it
        return _Incarnation(incarnation, float(age) if isinstance(age, int | float) else None)

    async def _start_time(self) -> str:
        status, body = await self._call("GET", f"{self._base_url}/metrics", QUICK_SECONDS)
        found = _START_TIME.search(body)
        if status != 200 or not found:
            raise EngineError(f"The engine at {self._base_url} doesn't tell process_start_time_seconds.")
        return f"start-time:{float(found.group(1))!r}"

    async def _asleep_or_slow(self) -> bool | None:
        try:
            return await self.is_sleeping()
        except EngineSlowError:
            return None

    async def is_sleeping(self, timeout_seconds: float = QUICK_SECONDS) -> bool:
        """The engine's own word; waits behind a sleep or wake that is under way. Raises EngineError."""
        status, body = await self._call("GET", f"{self._base_url}/is_sleeping", timeout_seconds)
        answer = _json(body)
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("is_sleeping"), bool):
            raise EngineError(f"/is_sleeping answered {status}: {_excerpt(body)}")
        return bool(answer["is_sleeping"])

    async def ask_canary(self, task: str, model: str, plain: bool) -> canary.Answer:
        """Ask the canary's questions; raises CanaryUnavailableError, EngineError."""
        refusals: list[str] = []
        questions = [
            (path, _JSON_TYPE, json.dumps(body).encode())
            for path, body in canary.requests_for(task, model, plain)
        ]
        if task == "generate":
            questions.append(canary.sound_request(model))
        for path, content_type, content in questions:
            status, answer = await self._ask(path, content_type, content)
            if status == 200:
                return self._read_canary(task, answer)
            if _NOT_FINITE in answer:
                return canary.Answer(task, ((math.nan,),))
            if status not in _NOT_OFFERED:
                raise EngineError(f"the canary's {path} answered {status}: {_excerpt(answer)}")
            refusals.append(f"{path} answered {status}: {_excerpt(answer)}")
        raise CanaryUnavailableError("; ".join(refusals))

    def _read_canary(self, task: str, answer: bytes) -> canary.Answer:
        try:
            return canary.read_answer(task, json.loads(answer))
        except ValueError as error:
            raise CanaryUnavailableError(str(error)) from None

    async def _ask(self, path: str, content_type: str, content: bytes) -> tuple[int, bytes]:
        url, seconds = f"{self._base_url}{path}", self._timeouts.canary
        headers = {"Content-Type": content_type, "X-Request-Id": CANARY_REQUEST_ID}
        return await self._call("POST", url, seconds, content, headers)

    async def ask_about_image(self, model: str) -> canary.Answer:
        """Ask about the canary's picture; raises EngineError; CanaryUnavailableError: it sees nothing."""
        path, body = canary.image_request(model)
        status, answer = await self._ask(path, _JSON_TYPE, json.dumps(body).encode())
        if _NOT_FINITE in answer:
            return canary.Answer("image", ((math.nan,),))
        if status in _NOT_OFFERED:
            raise CanaryUnavailableError(f"{path} with a picture answered {status}: {_excerpt(answer)}")
        if status != 200:
            raise EngineError(f"the canary's {path} with a picture answered {status}: {_excerpt(answer)}")
        try:
            return canary.read_image_answer(json.loads(answer))
        except ValueError as error:
            raise CanaryUnavailableError(str(error)) from None

    async def corrupted_requests(self) -> float:
        """How many answers held NaN since the engine started; 0 where it doesn't count them. Raises
        EngineError.
        """
        _, body = await self._call("GET", f"{self._base_url}/metrics", QUICK_SECONDS)
        return sum(float(value) for value in _CORRUPTED.findall(body))

    async def perform(self, step: Step) -> None:
        """Make the call of one step; raises EngineError unless it is known to have worked."""
        match step:
            case Step.SLEEP_LEVEL_1:
                await self._post("/sleep?level=1&mode=wait", self._timeouts.sleep)
            case Step.SLEEP_LEVEL_2:
                await self._post("/sleep?level=2&mode=wait", self._timeouts.sleep)
            case Step.WAKE_ALL:
                await self._post("/wake_up", self._timeouts.wake)
            case Step.WAKE_WEIGHTS:
                await self._post("/wake_up?tags=weights", self._timeouts.wake)
            case Step.RELOAD_WEIGHTS:
                await self._reload_weights()
            case Step.WAKE_KV_CACHE:
                await self._post("/wake_up?tags=kv_cache", self._timeouts.wake)
            case Step.RESET_PREFIX_CACHE:
                await self._reset_prefix_cache()
            case Step.RECORD_CANARY | Step.CANARY | Step.ORDER_RESTART:
                raise ValueError(f"{step} is more than one call")

    async def _reload_weights(self) -> None:
        seconds = self._timeouts.reload
        body = {"method": "reload_weights", "timeout": seconds}
        await self._post("/collective_rpc", seconds, body)

    async def _reset_prefix_cache(self) -> None:
        """Once more after a moment where it didn't work: requests that came past the router may hold
        blocks.
        """
        for pause_seconds in RESET_PAUSES_SECONDS:
            answer = _json(await self._post("/reset_prefix_cache", self._timeouts.wake))
            # 200 even when it didn't work; an empty answer says nothing either way.
            if not isinstance(answer, dict) or answer.get("success") is not False:
                return
            await asyncio.sleep(pause_seconds)
        raise EngineError("/reset_prefix_cache answered again and again that it did not succeed.")

    async def _post(self, path: str, timeout_seconds: float, body: dict[str, Any] | None = None) -> bytes:
        status, answer = await self._call("POST", f"{self._base_url}{path}", timeout_seconds, body)
        if status == 500 and _NO_MEMORY.search(answer):
            raise EngineOutOfMemoryError(f"{path} found too little device memory: {_excerpt(answer)}")
        if status != 200:
            raise EngineError(f"{path} answered {status}: {_excerpt(answer)}")
        return answer

    async def order_restart(self, incarnation: str, token: str) -> None:
        """Have the launcher end this incarnation of the engine and start another; "": whichever there is.

        Returns when the engine is on its way down or is another one already; raises EngineError.
        """
        wanted = incarnation or await self._incarnation_by_launcher()
        url, authorization = f"{self._launcher_url}/restart", {"Authorization": f"Bearer {token}"}
        status, body = await self._call("POST", url, LAUNCHER_SECONDS, {"incarnation": wanted}, authorization)
        if status not in (202, 409):
            raise EngineError(f"The launcher's /restart answered {status}: {_excerpt(body)}")

    async def measured_memory(self) -> Any:
        """The launcher's document about what the engine holds, as it came; raises EngineError."""
        status, body = await self._call("GET", f"{self._launcher_url}/memory", MEASURE_SECONDS)
        if status == 404:
            raise EngineError("Its launcher is of an earlier release and measures nothing: deploy again.")
        if status != 200:
            raise EngineError(f"The launcher's /memory answered {status}: {_excerpt(body)}")
        return _json(body)

    async def _incarnation_by_launcher(self) -> str:
        _, body = await self._call("GET", f"{self._launcher_url}/state", QUICK_SECONDS)
        state = _json(body)
        return str(state.get("incarnation", "")) if isinstance(state, dict) else ""

    async def _call(
        self,
        method: str,
        url: str,
        timeout_seconds: float,
        body: dict[str, Any] | bytes | None = None,
        further_headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=self._timeouts.connect)
        try:
            # The session adds no headers by itself, and vLLM refuses a body whose type isn't told.
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            headers = {"Content-Type": _JSON_TYPE} if isinstance(body, dict) else {}
            headers.update(further_headers or {})
            async with self._session.request(
                method, url, data=content, headers=headers, timeout=timeout
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineUnreachableError(f"Nobody answers at {url}: {error}") from None
        except TimeoutError:
            raise EngineSlowError(f"{url} didn't answer within {timeout_seconds:g} s.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineBrokenOffError(f"{url} broke off: {error or type(error).__name__}") from None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _excerpt(body: bytes) -> str:
    """What an answer says, shortened: of an error in OpenAI's shape its message."""
    try:
        text = str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        text = body.decode("utf-8", "replace")
    return text.strip()[:200] or "(nothing)"
