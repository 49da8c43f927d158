"""The HTTP endpoints as ASGI applications: each reads one body, answers once, and turns every error into OpenAI's JSON.

`Endpoint` is the rim: whatever happens inside `serve`, the client gets an answer or a clean close, never a traceback.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec
from tidegate_proto.openai_errors import ApiError, ApiErrorKind

from tidegate_worker.server.answers import StreamAnswer, WholeAnswer
from tidegate_worker.server.conversation import encode_conversation
from tidegate_worker.server.errors import ClientGoneError, RequestRefusedError, invalid
from tidegate_worker.server.exchange import Exchange, Scope, Send
from tidegate_worker.server.generation import Generation
from tidegate_worker.server.json_body import Receive, decode
from tidegate_worker.server.metrics import exposition
from tidegate_worker.server.model_limits import ModelLimits, check_model, most_text_bytes
from tidegate_worker.server.plan import GenerationPlan, decode_tokens
from tidegate_worker.server.request_types import DetokenizeBody, TokenizeBody
from tidegate_worker.server.service import WorkerService, WorkerState
from tidegate_worker.server.text_codec import TextCodec, utf8_bytes

Planner = Callable[[bytes, TextCodec, ModelLimits, Callable[[], int]], GenerationPlan]

MIN_TOKENIZE_BYTES = 1024 * 1024
"""`/tokenize` takes texts up to this size, also where the context could not: clients cut documents to size with it.
`/detokenize` takes as many tokens, so that whatever was tokenized can be turned back."""

_log = logging.getLogger(__name__)


class Endpoint(ABC):
    """One route."""

    def __init__(self, service: WorkerService) -> None:
        self._service = service

    @abstractmethod
    async def serve(self, exchange: Exchange) -> None:
        """Answer; raise `RequestRefusedError` to answer with an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.counts)
        with contextlib.suppress(OSError):  # the connection broke while an answer was written: nobody to tell
            try:
                await self.serve(exchange)
            except ClientGoneError:
                return
            except RequestRefusedError as refused:
                await exchange.fail(refused.error)
            except OSError:
                raise
            except Exception:  # noqa: BLE001 (the rim: a bug in one request must not reach its client as a traceback)
                _log.exception("a request failed unexpectedly", extra={"request_id": exchange.request_id})
                await exchange.fail(ApiError(ApiErrorKind.SERVER, "the worker failed to serve this request"))


class GenerateEndpoint(Endpoint):
    """`/v1/chat/completions` and `/v1/completions`."""

    def __init__(self, service: WorkerService, planner: Planner, max_body_bytes: int) -> None:
        super().__init__(service)
        self._planner = planner
        self._max_body_bytes = max_body_bytes

    async def serve(self, exchange: Exchange) -> None:
        started_at = time.monotonic()
        service = self._service
        service.admit()
        body = await exchange.body(self._max_body_bytes)
        codec, limits = service.codec, service.limits
        open_generations: list[Generation] = []
        watch = asyncio.create_task(self._abort_when_gone(exchange, open_generations))
        try:

            def draw_seed() -> int:
                # Asked for once a prompt: work on many long ones ends soon after their client has gone.
                _unless_gone(watch)
                return service.draw_seed()

            def plan_it() -> GenerationPlan:
                _unless_gone(watch)  # it may have waited for a thread
                return self._planner(body, codec, limits, draw_seed)

            plan = await service.with_text(len(body), plan_it)
            _unless_gone(watch)
            generation = service.open(plan, exchange.request_id, started_at)
            open_generations.append(generation)
            try:
                await self._answer(exchange, generation, codec)
            finally:
                service.close(generation)
        finally:
            watch.cancel()

    async def _abort_when_gone(self, exchange: Exchange, generations: list[Generation]) -> None:
        await exchange.wait_gone()
        for generation in generations:
            if not generation.finished:
                self._service.close(generation)
                generation.fail(ClientGoneError().error)

    async def _answer(self, exchange: Exchange, generation: Generation, codec: TextCodec) -> None:
        created = int(time.time())
        if not generation.plan.stream:
            await generation.changed()
            await exchange.send_whole(200, WholeAnswer(generation, codec, created).body())
            return
        answer = StreamAnswer(generation, codec, created)
        while not generation.finished or generation.error is not None:
            await generation.changed()
            events = answer.events(generation.take())
            if generation.finished:
                break
            if events:
                await exchange.send_event_bytes(events)
        else:
            events = answer.events(generation.take())
        await exchange.send_event_bytes(events + answer.end(), last=True)


class TokenizeEndpoint(Endpoint):
    """`/tokenize`: {prompt | messages} → {tokens, count, max_model_len}."""

    def __init__(self, service: WorkerService, max_body_bytes: int) -> None:
        super().__init__(service)
        self._max_body_bytes = max_body_bytes

    async def serve(self, exchange: Exchange) -> None:
        body = await exchange.body(self._max_body_bytes)
        await exchange.send_whole(200, await self._service.with_text(len(body), lambda: self._answer(body)))

    def _answer(self, body: bytes) -> bytes:
        tokens = self._tokens(body)
        limit = self._service.limits.context_tokens
        return msgspec.json.encode({"tokens": tokens, "count": len(tokens), "max_model_len": limit})

    def _tokens(self, body: bytes) -> list[int]:
        request, _ = decode(body, TokenizeBody)
        codec, limits = self._service.codec, self._service.limits
        if request.model is not None:
            check_model(request.model, limits)
        if (request.prompt is None) == (request.messages is None):
            raise invalid("give either 'prompt' or 'messages'", "prompt")
        most_bytes = max(MIN_TOKENIZE_BYTES, most_text_bytes(codec, limits))
        if request.messages is not None:
            return encode_conversation(request.messages, request.tools, codec, limits, most_bytes)
        size = utf8_bytes(request.prompt or "")
        if size > most_bytes:
            raise invalid(f"'prompt' has {size} bytes, more than the {most_bytes} that are tokenized at once", "prompt")
        return codec.encode(request.prompt or "", add_special_tokens=request.add_special_tokens is not False)


class DetokenizeEndpoint(Endpoint):
    """`/detokenize`: {tokens} → {prompt}."""

    def __init__(self, service: WorkerService, max_body_bytes: int) -> None:
        super().__init__(service)
        self._max_body_bytes = max_body_bytes

    async def serve(self, exchange: Exchange) -> None:
        body = await exchange.body(self._max_body_bytes)
        text = await self._service.with_text(len(body), lambda: self._text(body))
        await exchange.send_whole(200, msgspec.json.encode({"prompt": text}))

    def _text(self, body: bytes) -> str:
        request, _ = decode(body, DetokenizeBody)
        codec = self._service.codec
        if request.model is not None:
            check_model(request.model, self._service.limits)
        most_tokens = max(MIN_TOKENIZE_BYTES, self._service.limits.context_tokens)
        if len(request.tokens) > most_tokens:
            raise invalid(
                f"'tokens' holds {len(request.tokens)}, more than the {most_tokens} that are detokenized at once",
                "tokens",
            )
        for index, token_id in enumerate(request.tokens):
            if token_id >= self._service.limits.vocabulary_size:
                path = f"tokens[{index}]"
                raise invalid(f"'{path}': the vocabulary ends at {self._service.limits.vocabulary_size - 1}", path)
        return decode_tokens(request.tokens, codec)


class ModelsEndpoint(Endpoint):
    """`/v1/models` and `/v1/models/{name}`."""

    async def serve(self, exchange: Exchange) -> None:
        service = self._service
        models = [
            {
                "id": name,
                "object": "model",
                "created": service.created,
                "owned_by": "tidegate",
                "max_model_len": service.limits.context_tokens or None,
            }
            for name in service.served_names
        ]
        wanted = exchange.path_parameter("name")
        if wanted is None:
            await exchange.send_whole(200, msgspec.json.encode({"object": "list", "data": models}))
            return
        check_model(wanted, service.limits)
        chosen = next(model for model in models if model["id"] == wanted)
        await exchange.send_whole(200, msgspec.json.encode(chosen))


class HealthEndpoint(Endpoint):
    """`/health`: 200 while a loaded engine makes progress, draining or not."""

    async def serve(self, exchange: Exchange) -> None:
        await _send_state(exchange, self._service, {WorkerState.READY, WorkerState.DRAINING})


class ReadyEndpoint(Endpoint):
    """`/ready`: 200 while new requests may come."""

    async def serve(self, exchange: Exchange) -> None:
        await _send_state(exchange, self._service, {WorkerState.READY})


class MetricsEndpoint(Endpoint):
    """`/metrics`: Prometheus text."""

    async def serve(self, exchange: Exchange) -> None:
        body = exposition(self._service.collector)
        await exchange.send_whole(200, body, b"text/plain; version=0.0.4; charset=utf-8")


def _unless_gone(watch: "asyncio.Task[None]") -> None:
    """Raises `ClientGoneError` when nobody waits for an answer any more."""
    if watch.done():
        raise ClientGoneError


async def _send_state(exchange: Exchange, service: WorkerService, good: set[WorkerState]) -> None:
    healthy = service.state in good and not service.stalled
    status = "stalled" if service.stalled else service.state.value
    body = msgspec.json.encode({"status": status})
    await exchange.send_whole(200 if healthy else 503, body, retry_after=None if healthy else 1)
