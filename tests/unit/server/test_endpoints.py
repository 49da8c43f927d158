"""What an endpoint does for clients that no longer wait."""

import asyncio
import threading
from collections.abc import MutableMapping
from typing import Any

from server_builders import ScriptedEngine, completion_body, ready
from tidegate_worker.server.endpoints import GenerateEndpoint
from tidegate_worker.server.metrics import WorkerCounts
from tidegate_worker.server.plan import plan_completion
from tidegate_worker.server.service import INLINE_TEXT_BYTES, WorkerService
from tidegate_worker.server.telemetry import TelemetryHub
from tidegate_worker.sim.tokenizer import ByteCodec


class WaitingCodec(ByteCodec):
    """Counts the prompts that it cuts, and is not through with the first before the client has gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.encoded += 1
        assert self.gone.wait(10)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_the_prompts_of_a_client_that_has_gone_are_not_cut_to_the_end() -> None:
    codec, engine = WaitingCodec(), ScriptedEngine()
    counts = WorkerCounts()
    service = WorkerService(("m",), TelemetryHub(1, ("m",), counts), counts)
    service.engine_ready(ready(), codec, engine)
    body = completion_body(prompt=["x" * 90] * 100)
    assert len(body) > INLINE_TEXT_BYTES
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        message = messages.pop(0)
        if message["type"] == "http.disconnect":
            asyncio.get_running_loop().call_soon(codec.gone.set)
        return message

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    endpoint = GenerateEndpoint(service, plan_completion, 1 << 20)
    await endpoint({"type": "http", "headers": [], "http_version": "1.1"}, receive, send)
    service.stop()
    assert (codec.encoded, sent, engine.submitted) == (1, [], [])
