"""The demo's client and its words, against a scripted endpoint."""

import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console
from tidegate_cli.conversation import ChatClient
from tidegate_cli.demo import QUESTIONS, SYSTEM_PROMPT, Turn, converse, summarise, summary
from tidegate_cli.errors import ConversationError
from tidegate_cli.status import duration


def frame(payload: object) -> str:
    return f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n"


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 32}}}
GOOD = frame(chunk("")) + frame(chunk("Hi")) + ": comment\n\n" + frame(chunk(" there")) + frame(USAGE) + frame("[DONE]")


@contextmanager
def endpoint(body: str, status: int = 200) -> Iterator[tuple[ChatClient, list[dict[str, object]]]]:
    seen: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(status)
            self.send_header("x-tidegate-endpoint", "cpu-1")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            ticks = iter(range(1_000))
            url = f"http://127.0.0.1:{server.server_port}"
            yield (
                ChatClient(
                    url,
                    "m",
                    8,
                    timeout_seconds=5,
                    clock=lambda: float(next(ticks)),
                ),
                seen,
            )
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_is_put_together_and_timed_to_its_first_text() -> None:
    with endpoint(GOOD) as (client, seen):
        answer = client.ask([{"role": "user", "content": "Hello?"}])
    assert (answer.text, answer.worker) == ("Hi there", "cpu-1")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.ttft_seconds) == (40, 32, 1.0)
    assert seen[0]["stream_options"] == {"include_usage": True}
    assert seen[0]["temperature"] == 0


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"error": {"message": "no endpoint"}}', 503, "answered 503: .*no endpoint"),
        (frame(chunk("Hi")), 200, r"ended before \[DONE\]"),
        (frame(chunk("Hi")) + frame({"error": {"message": "worker lost"}}), 200, "ended with an error: worker lost"),
        (frame("{"), 200, "not JSON"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(body: str, status: int, message: str) -> None:
    with endpoint(body, status) as (client, _), pytest.raises(ConversationError, match=message):
        client.ask([])


def test_an_endpoint_that_is_gone_is_an_error() -> None:
    with endpoint(GOOD) as (client, _):
        pass
    with pytest.raises(ConversationError, match="no answer from"):
        client.ask([])


def test_the_second_conversation_begins_after_the_firsts_first_turn_and_both_keep_their_history() -> None:
    out = io.StringIO()
    with endpoint(GOOD) as (client, seen):
        turns = converse(client, Console(file=out, width=200))
    assert [(turn.conversation, turn.turn) for turn in turns] == [(c, n) for n in (1, 2, 3) for c in ("A", "B")]
    assert [len(request["messages"]) for request in seen] == [2, 2, 4, 4, 6, 6]
    assert all(request["messages"][0] == {"role": "system", "content": SYSTEM_PROMPT} for request in seen)
    assert QUESTIONS["B"][2] in out.getvalue()


def turn(number: int, ttft: float, cached: int) -> Turn:
    return Turn("A", number, "cpu-0", 400, cached, ttft)


def test_the_summary_compares_the_first_turn_with_those_after_it() -> None:
    turns = [turn(1, 1.5, 0), turn(2, 0.3, 320), turn(3, 0.5, 400), turn(4, 0.3, 360)]
    assert summary(turns) == (
        "TTFT 1500 ms on the first turn, 300 ms (median) on the turns after it: 5.0 times sooner. "
        "90% of their prompt tokens came from a cache."
    )
    out = io.StringIO()
    summarise(turns, Console(file=out, width=120))
    assert "1500 ms" in out.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (60, "1m"), (7_200, "2h"), (200_000, "2d")])
def test_durations_are_rough(seconds: float, text: str) -> None:
    assert duration(seconds) == text
