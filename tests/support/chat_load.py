"""Chat requests that judge their answers: did this end well, in a clear error, or in something wrong that looks right?

The judge reads the wire itself, so a library's leniency hides nothing. It expects the echo answers of `echo_answers`.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import echo_answers

FINISHED = {"stop", "length"}
NOT_HTTP = -1  # "status" of what is no answer


class Ending(Enum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    """200 and exactly the answer that was due; a stream with its finish reason and `[DONE]`, in that order."""
    ERROR = "error"
    """An HTTP error in OpenAI's shape."""
    ERROR_EVENT = "error event"
    """A stream that had begun ended with exactly one error event, and no `[DONE]`."""
    CUT = "cut"
    """The connection broke and the framing shows it; no error was told."""
    HUNG = "hung"
    WRONG = "wrong"
    """Looks successful, or like a clear error, and is neither."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one request."""

    ending: Ending
    status: int = 0
    detail: str = ""
    retry_after: str | None = None
    events: int = 0
    """Events of a stream that came before its end, an error event not counted."""
    text: str = ""
    """The whole answer's text when it ended well."""


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """An answer as it was on the wire. `complete`: its framing came to a proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class Chat:
    """What is asked. `user` comes back in the answer."""

    user: str
    stream: bool
    model: str = echo_answers.MODEL
    max_tokens: int = 16
    expected: str | None = None
    """The text that is due; None is that of an echo worker, "" is any."""

    def body(self) -> bytes:
        """The request's JSON; the prompt begins with the user, so that requests share no prefix."""
        document = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"{self.user} says hello"}],
            "stream": self.stream,
            "user": self.user,
            "max_tokens": self.max_tokens,
            "temperature": 0,
        }
        return json.dumps(document).encode()

    def is_due(self, text: str) -> bool:
        """Whether this is the answer that the request must get."""
        expected = echo_answers.expected_answer(self.user) if self.expected is None else self.expected
        return not expected or text == expected


def judge(chat: Chat, answer: WireAnswer) -> Verdict:
    """Classify a whole or broken answer."""
    if answer.status == 200:
        return _judge_stream(chat, answer) if chat.stream else _judge_whole(chat, answer)
    problem = _error_problem(answer)
    ending = Ending.CUT if not answer.complete else Ending.WRONG if problem else Ending.ERROR
    return Verdict(ending, answer.status, problem or _text(answer.body), answer.headers.get("retry-after"))


def _error_problem(answer: WireAnswer) -> str:
    """What is wrong with an error answer, empty when nothing is."""
    try:
        error = json.loads(answer.body)["error"]
        if isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str):
            return ""
    except (ValueError, KeyError, TypeError):
        pass
    return f"{answer.status} without OpenAI's error: {_text(answer.body)}"


def _judge_whole(chat: Chat, answer: WireAnswer) -> Verdict:
    if not answer.complete:
        return Verdict(Ending.CUT, 200, f"{len(answer.body)} bytes")
    try:
        choice = json.loads(answer.body)["choices"][0]
        text, finished = choice["message"]["content"], choice["finish_reason"] in FINISHED
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return Verdict(Ending.WRONG, 200, f"{type(error).__name__} in {_text(answer.body)}")
    if finished and chat.is_due(text):
        return Verdict(Ending.OK, 200, text=text)
    return Verdict(Ending.WRONG, 200, f"for {chat.user}: {_text(answer.body)}")


def _judge_stream(chat: Chat, answer: WireAnswer) -> Verdict:
    broken = Ending.WRONG if answer.complete else Ending.CUT
    if "text/event-stream" not in answer.headers.get("content-type", ""):
        return Verdict(broken, 200, f"no event stream: {_text(answer.body)}")
    *events, rest = answer.body.split(b"\n\n")
    if rest:
        return Verdict(broken, 200, f"half an event: {_text(rest)}", events=len(events))
    payloads = [event.removeprefix(b"data: ") for event in events]
    errors = [payload for payload in payloads if b'"error"' in payload]
    if errors:
        return _judge_error_event(payloads, errors)
    if not answer.complete:
        return Verdict(Ending.CUT, 200, f"{len(payloads)} events", events=len(payloads))
    return _judge_events(chat, payloads)


def _judge_error_event(payloads: list[bytes], errors: list[bytes]) -> Verdict:
    events = len(payloads) - len(errors)
    if len(errors) > 1 or payloads[-1] != errors[0] or b"[DONE]" in payloads:
        return Verdict(
            Ending.WRONG, 200, f"{len(errors)} error events, at the end {_text(payloads[-1])}", events=events
        )
    problem = _error_problem(WireAnswer(502, {}, errors[0], complete=True))
    return Verdict(Ending.WRONG if problem else Ending.ERROR_EVENT, 200, problem or _text(errors[0]), events=events)


def _judge_events(chat: Chat, payloads: list[bytes]) -> Verdict:
    if not payloads or payloads[-1] != b"[DONE]":
        return Verdict(Ending.WRONG, 200, f"{len(payloads)} events and no [DONE]", events=len(payloads))
    try:
        choices = [json.loads(payload)["choices"][0] for payload in payloads[:-1]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        finished = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return Verdict(Ending.WRONG, 200, f"{type(error).__name__} in an event", events=len(payloads))
    if len(finished) == 1 and finished[0] in FINISHED and chat.is_due(text):
        return Verdict(Ending.OK, 200, events=len(payloads), text=text)
    return Verdict(Ending.WRONG, 200, f"for {chat.user}: {text!r}, finished {finished}", events=len(payloads))


def _text(body: bytes) -> str:
    return body[:300].decode(errors="replace")


class ChatConnection:
    """A client's keep-alive connection; opened when needed and again after the router closed it."""

    def __init__(self, port: int, *, timeout_seconds: float) -> None:
        self._port = port
        self._timeout_seconds = timeout_seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, chat: Chat, *fields: str, path: str = "/v1/chat/completions") -> Verdict:
        """Send a request and judge what comes back, within the time-out."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._exchange(chat, fields, path)
        except TimeoutError:
            self.close()
            return Verdict(Ending.HUNG, detail=f"no end within {self._timeout_seconds:g} s")
        return judge(chat, answer)

    def close(self) -> None:
        """Close the connection, if one is open."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, chat: Chat, fields: Iterable[str], path: str) -> WireAnswer:
        body = chat.body()
        head = [f"POST {path} HTTP/1.1", "host: test", "content-type: application/json", *fields]
        request = "\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body
        reused = self._streams is not None
        answer = await self._send(request)
        if reused and not answer.status:  # closed while idle, as any server may: the request was not taken
            answer = await self._send(request)
        if not answer.complete or answer.headers.get("connection") == "close":
            self.close()
        return answer

    async def _send(self, request: bytes) -> WireAnswer:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            await writer.drain()
        except OSError as error:
            self.close()
            return WireAnswer(0, {}, str(error).encode(), complete=False)
        answer = await read_answer(reader)
        if not answer.complete:
            self.close()
        return answer


async def read_answer(reader: asyncio.StreamReader) -> WireAnswer:
    """One final answer, as far as it came; status 0 when not even its head did."""
    status, headers, body = 0, dict[str, str](), bytearray()
    try:
        while status < 200:
            head = await reader.readuntil(b"\r\n\r\n")
            if not re.match(rb"HTTP/1\.[01] [1-5]\d\d ", head):
                return WireAnswer(NOT_HTTP, {}, head, complete=True)
            status, headers = _parse_head(head)
        if "chunked" in headers.get("transfer-encoding", ""):
            await _read_chunks(reader, body)
        elif "content-length" in headers:
            await _read_into(reader, body, int(headers["content-length"]))
        else:
            body += await reader.read()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
        return WireAnswer(status, headers, bytes(body), complete=False)
    return WireAnswer(status, headers, bytes(body), complete=True)


async def _read_chunks(reader: asyncio.StreamReader, body: bytearray) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await _read_into(reader, body, size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


async def _read_into(reader: asyncio.StreamReader, body: bytearray, size: int) -> None:
    """Read `size` bytes; what came before a break is kept."""
    while size:
        data = await reader.read(size)
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        body += data
        size -= len(data)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields if field)}
    return int(line.split(" ")[1]), headers


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What a load came to."""

    verdicts: dict[str, Verdict]
    """By user."""
    seconds: float

    @property
    def endings(self) -> Counter[Ending]:
        return Counter(verdict.ending for verdict in self.verdicts.values())

    def of(self, *endings: Ending) -> dict[str, Verdict]:
        """The requests that ended in one of these ways."""
        return {user: verdict for user, verdict in self.verdicts.items() if verdict.ending in endings}

    def summary(self) -> dict[str, Any]:
        """Counts, and the worst few that were not OK, for a test's message."""
        worst = sorted(self.verdicts.items(), key=lambda item: list(Ending).index(item[1].ending), reverse=True)
        odd = [(user, str(verdict)) for user, verdict in worst if verdict.ending is not Ending.OK]
        return {"endings": {ending.value: count for ending, count in self.endings.items()}, "worst": odd[:3]}


async def run_load(port: int, chats: list[Chat], *, connections: int, timeout_seconds: float = 10.0) -> LoadOutcome:
    """Ask all `chats` over some keep-alive connections, each taking the next as it is done with one."""
    waiting = iter(chats)
    verdicts: dict[str, Verdict] = {}
    started = time.monotonic()

    async def work() -> None:
        with contextlib.closing(ChatConnection(port, timeout_seconds=timeout_seconds)) as connection:
            for chat in waiting:
                verdicts[chat.user] = await connection.ask(chat)

    await asyncio.gather(*(work() for _ in range(connections)))
    return LoadOutcome(verdicts, time.monotonic() - started)
