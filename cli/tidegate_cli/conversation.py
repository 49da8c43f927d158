"""One streamed chat turn over plain HTTP, timed; for the demo, where a dependency on a client would be out of place."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidegate_cli.errors import ConversationError

Message = dict[str, str]
Clock = Callable[[], float]

_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request brought."""

    text: str
    worker: str
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds: float
    """From sending the request to the first piece of text."""


@dataclass(frozen=True, slots=True)
class ChatClient:
    """Asks one model at one endpoint."""

    endpoint: str
    model: str
    max_tokens: int
    timeout_seconds: float = 120.0
    clock: Clock = time.perf_counter

    def ask(self, messages: list[Message]) -> Answer:
        """Stream the answer to a conversation, greedily; raises ConversationError when it is not a whole one."""
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        target = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=self.timeout_seconds)
        try:
            return self._exchange(connection, json.dumps(body).encode())
        except (OSError, http.client.HTTPException) as error:
            raise ConversationError(f"no answer from {self.endpoint}: {error or type(error).__name__}") from error
        finally:
            connection.close()

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> Answer:
        headers = {"content-type": "application/json", "x-tidegate-debug": "1"}
        begin = self.clock()
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            detail = response.read(2_000).decode(errors="replace")
            raise ConversationError(f"{self.endpoint} answered {response.status}: {detail}")
        pieces: list[str] = []
        first: float | None = None
        usage: dict[str, object] = {}
        for event in _events(response):
            usage = _mapping(event.get("usage")) or usage
            if text := _delta(event):
                first = self.clock() if first is None else first
                pieces.append(text)
        details = _mapping(usage.get("prompt_tokens_details"))
        return Answer(
            text="".join(pieces),
            worker=response.getheader("x-tidegate-endpoint") or "unknown",
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(details.get("cached_tokens")),
            ttft_seconds=(self.clock() if first is None else first) - begin,
        )


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, object]]:
    """The JSON objects of a stream up to `[DONE]`; raises ConversationError on an error event or a broken stream."""
    while line := response.readline(_MAX_LINE_BYTES):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise ConversationError(f"the stream holds something that is not JSON: {data[:200]!r}") from error
        if "error" in event:
            raise ConversationError(f"the stream ended with an error: {_mapping(event['error']).get('message')}")
        yield event
    raise ConversationError("the stream ended before [DONE]")


def _delta(event: dict[str, object]) -> str:
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return ""
    content = _mapping(_mapping(choices[0]).get("delta")).get("content")
    return content if isinstance(content, str) else ""


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
