"""The stand-in's HTTP server: vLLM's routes in the dialects of 0.27.1 and 0.32.0, and a launcher's /state."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

from tests.standin.brain import Brain, Dialect

ANSWER = ["The", " capital", " of", " France", " is", " Paris", "."]
HOST_BYTES_ON_GPUS = 500_000_000
GPU_BYTES = 80 * 2**30
GREEN = frozenset({"/health", "/metrics", "/v1/models", "/version"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StandIn:
    """One stand-in engine."""

    def __init__(
        self, model: str, task: str, dialect: Dialect, devices: list[str], vision: bool = False
    ) -> None:
        self.model = model
        self.vision = vision
        self.task = task
        self.brain = Brain(dialect, memory=dict.fromkeys(devices, 0))
        self.incarnation = uuid.uuid4().hex
        self.phase = "starting"
        self.started = time.time()
        self.calls: list[dict[str, Any]] = []
        self.stored: dict[str, dict[str, Any]] = {}
        self.site: web.BaseSite | None = None

    def application(self) -> web.Application:
        """The engine's routes."""
        app = web.Application(middlewares=[self._faults], client_max_size=256 * 1024 * 1024)
        app.router.add_get("/health", self._ok)
        app.router.add_get("/ping", self._ok)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        app.router.add_post("/collective_rpc", self._collective_rpc)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/standin/faults", self._set_faults)
        app.router.add_get("/standin/state", self._state)
        app.router.add_post("/standin/close_port", self._close_port)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        if self.task == "generate":
            app.router.add_post("/v1/chat/completions", self._chat)
            app.router.add_post("/v1/completions", self._completions)
            app.router.add_post("/v1/responses", self._responses)
            app.router.add_get("/v1/responses/{id}", self._stored_response)
            app.router.add_post("/v1/responses/{id}/cancel", self._stored_response)
            app.router.add_post("/v1/messages", self._messages)
            app.router.add_post("/v1/messages/count_tokens", self._count_tokens)
            app.router.add_post("/v1/audio/transcriptions", self._audio)
            app.router.add_post("/v1/audio/translations", self._audio)
            app.router.add_get("/v1/realtime", self._realtime)
        else:
            app.router.add_post("/v1/embeddings", self._embeddings)
            for path in ("/score", "/v1/score"):
                app.router.add_post(path, self._score)
            for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
                app.router.add_post(path, self._rerank)
            app.router.add_post("/pooling", self._embeddings)
            app.router.add_post("/classify", self._classify)
        return app

    def launcher_application(self) -> web.Application:
        """The launcher's routes."""
        app = web.Application()
        app.router.add_get("/state", self._launcher_state)
        app.router.add_get("/memory", self._launcher_memory)
        return app

    # ---- faults

    @web.middleware
    async def _faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/standin/"):
            return await handler(request)
        canary = request.headers.get("X-Request-Id") == "frontdoor-canary"
        call = {"method": request.method, "path": request.path_qs, "at": time.time(), "canary": canary}
        self.calls.append(call)
        faults, path = self.brain.faults, request.path
        if path in faults.die:
            os._exit(0)
        if path in faults.drop:
            _cut(request)
        if path in faults.hang or ("*" in faults.hang and path not in GREEN):
            await asyncio.sleep(86400)
        if path in faults.fail:
            return web.json_response(
                _error("ordered to fail", "InternalServerError"), status=faults.fail[path]
            )
        return await handler(request)

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.brain.faults.update(await request.json())
        return web.json_response({})

    async def _close_port(self, request: web.Request) -> web.Response:
        assert self.site is not None
        asyncio.get_running_loop().call_later(0.05, asyncio.ensure_future, self.site.stop())
        return web.json_response({})

    async def _state(self, request: web.Request) -> web.Response:
        brain = self.brain
        return web.json_response(
            {
                "calls": self.calls,
                "running": brain.running,
                "sleeping": sorted(brain.sleeping),
                "level": brain.level,
                "weights_good": brain.weights_good,
                "memory": brain.memory,
                "incarnation": self.incarnation,
            }
        )

    async def _launcher_state(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "schema_version": 1,
                "service": "stand-in",
                "incarnation": self.incarnation,
                "phase": self.phase,
                "since_seconds": time.time() - self.started,
                "devices": list(self.brain.memory),
                "waiting_for": None,
                "child_exit": None,
            }
        )

    async def _launcher_memory(self, request: web.Request) -> web.Response:
        """Of a GPU, what its engine and others use; a CPU device is in the engine's resident memory."""
        faults = self.brain.faults
        used = {device: size + faults.memory_of_others for device, size in self.brain.memory.items()}
        gpus = {device: size for device, size in used.items() if device.startswith("GPU-")}
        resident = sum(size for device, size in used.items() if device not in gpus) or HOST_BYTES_ON_GPUS
        known = faults.memory_problem is None
        document = {
            "schema_version": 1,
            "service": "stand-in",
            "age_seconds": 0.0,
            "resident_bytes": resident if known or gpus else None,
            "devices": {
                device: {"used_bytes": size, "total_bytes": GPU_BYTES}
                for device, size in gpus.items()
                if known
            },
            "problems": [] if known else [faults.memory_problem],
        }
        return web.json_response(document, status=faults.memory_status)

    # ---- the server's own

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.brain.dialect})

    async def _metrics(self, request: web.Request) -> web.Response:
        asleep = self.brain.is_sleeping
        lines = [
            f"process_start_time_seconds {self.started!r}",
            f'vllm:num_requests_running{{engine="0",model_name="{self.model}"}} {float(self.brain.running)}',
            f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {float(not asleep)}',
            f'vllm:corrupted_requests_total{{engine="0"}} {float(self.brain.faults.corrupted_requests)}',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "object": "list",
                "data": [{"id": self.model, "object": "model", "created": 0, "owned_by": "vllm"}],
            }
        )

    # ---- sleep

    async def _sleep(self, request: web.Request) -> web.Response:
        level, mode = int(request.query.get("level", "1")), request.query.get("mode", "abort")
        if self.brain.dialect != "0.27.1" and (
            level not in (0, 1, 2) or mode not in ("abort", "wait", "keep")
        ):
            return web.json_response(_error("bad level or mode", "BadRequestError"), status=400)
        await self.brain.sleep(level, mode)
        return self._sleep_answer({"status": "sleeping", "level": level})

    async def _wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        if await self._lacks_memory():
            text = "Call to wake_up method failed: CUDA Error: out of memory at /standin/allocator.cpp:163"
            return web.json_response(_error(text, "InternalServerError", 500), status=500)
        await self.brain.wake(tags)
        status = "sleeping" if self.brain.is_sleeping else "awake"
        return self._sleep_answer({"status": status, "tags": tags or None})

    async def _lacks_memory(self) -> bool:
        faults = self.brain.faults
        lacks = faults.no_memory > 0
        faults.no_memory -= lacks
        if faults.no_memory_while_awake is not None:
            url = f"{faults.no_memory_while_awake}/is_sleeping"
            async with ClientSession() as session, session.get(url) as answer:
                lacks = not (await answer.json())["is_sleeping"]
        if lacks and faults.half_woken_is_garbage:
            self.brain.weights_good = False
        return lacks

    def _sleep_answer(self, document: dict[str, Any]) -> web.Response:
        return web.Response() if self.brain.dialect == "0.27.1" else web.json_response(document)

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        async with self.brain.turn:
            return web.json_response({"is_sleeping": self.brain.is_sleeping})

    async def _collective_rpc(self, request: web.Request) -> web.Response:
        method = (await request.json()).get("method")
        if method != "reload_weights":
            return web.json_response(_error("unknown method", "BadRequestError"), status=400)
        if self.brain.faults.fail.get("reload_weights"):
            return web.json_response(_error("reload failed", "InternalServerError"), status=500)
        await self.brain.reload_weights()
        return web.json_response({"results": [None]})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"success": not self.brain.faults.fail.get("reset_prefix_cache")})

    # ---- requests

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """A request waits while the engine sleeps; then it runs."""
        await self.brain.awake.wait()
        self.brain.begin()
        try:
            await asyncio.sleep(self.brain.faults.first_token_seconds)
            yield
        finally:
            self.brain.end()

    async def _body(self, request: web.Request) -> dict[str, Any]:
        if request.content_type != "application/json":
            raise _bad_request("Unsupported Media Type: Only 'application/json' is allowed")
        try:
            body = await request.json()
        except ValueError:
            raise _bad_request("the body is not JSON") from None
        if body.get("model") != self.model:
            error = _error(f"The model `{body.get('model')}` does not exist.", "NotFoundError")
            raise web.HTTPNotFound(text=json.dumps(error), content_type="application/json")
        return dict(body)

    def _tokens(self, body: dict[str, Any]) -> list[str]:
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or len(ANSWER)
        if not isinstance(limit, int):
            raise _bad_request("max_tokens: input should be a valid integer")
        good = self.brain.weights_good and not self.brain.faults.garbage
        words = ANSWER if good else ["!"] * len(ANSWER)
        return (words * math.ceil(limit / len(words)))[:limit] if limit > len(words) else words[:limit]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if not isinstance(body.get("messages"), list):
            raise _bad_request("messages: field required")
        picture = _picture(body["messages"])
        if picture is not None and not self.vision:
            raise _bad_request(f"{self.model} is not a multimodal model")
        async with self._working():
            tokens = self._tokens(body)
            head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.model}
            if body.get("stream"):
                events = [
                    {**head, "object": "chat.completion.chunk", "choices": [_delta({"content": token}, None)]}
                    for token in tokens
                ]
                end = {**head, "object": "chat.completion.chunk", "choices": [_delta({}, "stop")]}
                return await self._stream(request, [*events, end])
            await asyncio.sleep(self.brain.faults.chunk_seconds * len(tokens))
            logprobs: dict[str, Any] | None = None
            if picture is not None:
                tokens = self._described(picture)
            if body.get("logprobs"):
                good = self.brain.weights_good and self.brain.vision_good
                chosen = [{"token": token, "logprob": self._value(token, good)} for token in tokens]
                logprobs = {"content": chosen}
            message = {"role": "assistant", "content": "".join(tokens)}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
            document = {
                **head,
                "object": "chat.completion",
                "choices": [choice],
                "usage": _usage(len(tokens)),
            }
            return _finite(document)

    def _described(self, picture: str) -> list[str]:
        """A description that depends on the picture, and on the part of the weights that sees."""
        good = self.brain.weights_good and self.brain.vision_good
        digest = hashlib.sha256(f"{picture}{good}".encode()).hexdigest()
        return [f" {digest[at : at + 4]}" for at in range(0, 32, 4)]

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        async with self._working():
            tokens = self._tokens(body)
            head = {
                "id": f"cmpl-{uuid.uuid4().hex}",
                "object": "text_completion",
                "created": int(time.time()),
            }
            head["model"] = self.model
            if body.get("stream"):
                texts = [{"index": 0, "text": token, "finish_reason": None} for token in tokens]
                return await self._stream(request, [{**head, "choices": [text]} for text in texts])
            choice: dict[str, Any] = {"index": 0, "text": "".join(tokens), "finish_reason": "stop"}
            if body.get("logprobs") is not None or body.get("prompt_logprobs") is not None:
                choice.update(self._logprobs(body, tokens))
            return _finite({**head, "choices": [choice], "usage": _usage(len(tokens))})

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        async with self._working():
            text = "".join(self._tokens({**body, "max_tokens": body.get("max_output_tokens")}))
            content = [{"type": "output_text", "text": text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant"}
            document: dict[str, Any] = {
                "id": f"resp_{uuid.uuid4().hex}",
                "object": "response",
                "created_at": int(time.time()),
                "model": self.model,
                "status": "completed",
                "output": [{**message, "status": "completed", "content": content}],
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
            }
            self.stored[document["id"]] = document
            if body.get("stream"):
                return await self._stream(request, [{"type": "response.completed", "response": document}])
            return web.json_response(document)

    async def _stored_response(self, request: web.Request) -> web.Response:
        document = self.stored.get(request.match_info["id"])
        if document is None:
            return web.json_response(_error("no such response", "NotFoundError"), status=404)
        return web.json_response(document)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        async with self._working():
            tokens = self._tokens(body)
            usage = {"input_tokens": 5, "output_tokens": len(tokens)}
            head = {
                "id": f"msg_{uuid.uuid4().hex}",
                "type": "message",
                "role": "assistant",
                "model": self.model,
            }
            if not body.get("stream"):
                content = [{"type": "text", "text": "".join(tokens)}]
                stop = {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
                return web.json_response({**head, "content": content, **stop})
            start: dict[str, Any] = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
            start["usage"] = usage
            block = {"type": "text", "text": ""}
            events: list[dict[str, Any]] = [
                {"type": "message_start", "message": start},
                {"type": "content_block_start", "index": 0, "content_block": block},
            ]
            for token in tokens:
                delta = {"type": "text_delta", "text": token}
                events.append({"type": "content_block_delta", "index": 0, "delta": delta})
            ending = {"stop_reason": "end_turn", "stop_sequence": None}
            events += [
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": ending, "usage": usage},
                {"type": "message_stop"},
            ]
            return await self._stream(request, events, named=True)

    async def _count_tokens(self, request: web.Request) -> web.Response:
        await self._body(request)
        return web.json_response({"input_tokens": 5})

    async def _audio(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if form.get("model") != self.model:
            return web.json_response(_error("no such model", "NotFoundError"), status=404)
        async with self._working():
            upload = form["file"]
            size = len(upload.file.read()) if isinstance(upload, web.FileField) else len(str(upload))
            return web.json_response({"text": f"{size} bytes of silence"})

    async def _realtime(self, request: web.Request) -> web.StreamResponse:
        """Echo every message, once a session names the model (or the query did)."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        known = request.query.get("model") == self.model
        async with self._working():
            async for message in socket:
                if message.type is web.WSMsgType.TEXT:
                    document = json.loads(message.data)
                    known = known or self.model in (
                        document.get("model"),
                        document.get("session", {}).get("model"),
                    )
                    if document.get("type") == "close":
                        await socket.close(code=4000)
                    else:
                        await socket.send_json({"type": "echo", "known": known, "got": document})
                else:
                    await socket.send_bytes(message.data)
        return socket

    def _logprobs(self, body: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
        """Log-probabilities that depend on prompt and weights only, and are garbage with bad weights."""
        words = str(body.get("prompt", "")).split()
        good = self.brain.weights_good
        values = [self._value(word, good) for word in words]
        prompt: list[Any] = [None] if values else []
        prompt += [
            {"7": {"logprob": value, "rank": 1, "decoded_token": word}}
            for word, value in zip(words[1:], values[1:], strict=False)
        ]
        chosen = [self._value(token, good) for token in tokens]
        return {"prompt_logprobs": prompt, "logprobs": {"tokens": tokens, "token_logprobs": chosen}}

    def _value(self, word: str, good: bool) -> float:
        if self.brain.faults.nan_answers:
            return float("nan")
        digest = hashlib.sha256(f"{word}{good}".encode()).digest()
        return -0.01 - digest[0] / 64

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        given = body.get("input", "")
        texts = given if isinstance(given, list) else [given]
        async with self._working():
            data = [
                {"object": "embedding", "index": index, "embedding": self._vector(str(text))}
                for index, text in enumerate(texts)
            ]
            return _finite({"object": "list", "model": self.model, "data": data, "usage": _usage(0)})

    async def _score(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        texts = body.get("text_2", "")
        texts = texts if isinstance(texts, list) else [texts]
        async with self._working():
            data = [
                {
                    "object": "score",
                    "index": index,
                    "score": abs(self._vector(f"{body.get('text_1')}{text}")[0]),
                }
                for index, text in enumerate(texts)
            ]
            return web.json_response(
                {"object": "list", "model": self.model, "data": data, "usage": _usage(0)}
            )

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        async with self._working():
            data = []
            for index, text in enumerate(body.get("input", [])):
                yes = abs(self._vector(str(text))[0])
                data.append({"index": index, "label": "yes", "probs": [yes, 1 - yes], "num_classes": 2})
            return _finite({"object": "list", "model": self.model, "data": data, "usage": _usage(0)})

    async def _rerank(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        async with self._working():
            results = [
                {
                    "index": index,
                    "relevance_score": abs(self._vector(str(text))[0]),
                    "document": {"text": text},
                }
                for index, text in enumerate(body.get("documents", []))
            ]
            return web.json_response({"id": "rerank-1", "model": self.model, "results": results})

    def _vector(self, text: str) -> list[float]:
        if self.brain.faults.nan_answers:
            return [float("nan")] * 16
        salt = "" if self.brain.weights_good else "garbage"
        digest = hashlib.sha256((salt + text).encode()).digest()
        return [(byte - 127.5) / 127.5 for byte in digest[:16]]

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        tokens = list(str(body.get("prompt", "")).encode())
        return web.json_response({"count": len(tokens), "max_model_len": 4096, "tokens": tokens})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        return web.json_response({"prompt": bytes(body.get("tokens", [])).decode("utf-8", "replace")})

    async def _stream(
        self, request: web.Request, events: list[dict[str, Any]], named: bool = False
    ) -> web.StreamResponse:
        faults, aborted = self.brain.faults, self.brain.aborted
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, event in enumerate(events):
            if number == faults.die_after_chunks:
                os._exit(0)
            if number == faults.cut_after_chunks:
                _cut(request)
            if aborted.is_set():
                break
            try:
                name = f"event: {event['type']}\n" if named else ""
                await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
            except ConnectionResetError:
                return response  # the client has left
            if faults.chunk_seconds:
                await asyncio.sleep(faults.chunk_seconds)
        if not named:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _picture(messages: list[Any]) -> str | None:
    """The first picture in the messages, as it was sent."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and part.get("type") == "image_url":
                return str(part["image_url"]["url"])
    return None


def _delta(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}


def _finite(document: dict[str, Any]) -> web.Response:
    """An answer, or vLLM's 400 when it would hold NaN."""
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError:
        message = "Out of range float values are not JSON compliant"
        return web.json_response(_error(message, "BadRequestError"), status=400)
    return web.Response(text=text, content_type="application/json")


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}


def _error(message: str, kind: str, code: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _bad_request(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(
        text=json.dumps(_error(message, "BadRequestError")), content_type="application/json"
    )


def _cut(request: web.Request) -> None:
    """End the connection without a word."""
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError("cut on order")


async def serve(arguments: argparse.Namespace) -> None:
    """Run for ever."""
    standin = StandIn(arguments.model, arguments.task, arguments.dialect, arguments.device, arguments.vision)
    if arguments.launcher_port:
        launcher = web.AppRunner(standin.launcher_application(), access_log=None)
        await launcher.setup()
        await web.TCPSite(launcher, arguments.host, arguments.launcher_port).start()
    await asyncio.sleep(arguments.boot_seconds)
    runner = web.AppRunner(standin.application(), access_log=None, handler_cancellation=True)
    await runner.setup()
    standin.site = web.TCPSite(runner, arguments.host, arguments.port, backlog=2048)
    await standin.site.start()
    standin.phase = "healthy"
    print("ready", flush=True)
    await asyncio.Event().wait()


def command_line() -> argparse.ArgumentParser:
    """What a stand-in can be told when it starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--launcher-port", type=int, default=0)
    parser.add_argument("--model", default="stand-in")
    parser.add_argument("--task", choices=["generate", "embed", "rerank"], default="generate")
    parser.add_argument("--dialect", choices=["0.27.1", "0.32.0"], default="0.32.0")
    parser.add_argument("--vision", action="store_true", help="it takes pictures")
    parser.add_argument("--device", action="append", default=[])
    parser.add_argument("--boot-seconds", type=float, default=0.0)
    return parser


def main() -> None:
    """`python -m tests.standin.server --port 8000 ...`"""
    try:
        asyncio.run(serve(command_line().parse_args()))
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
