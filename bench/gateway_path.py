"""CPU time of one request inside the router: `python -m bench.gateway_path [--profile]`. No sockets, so little noise.

The router's real parts, from the client's bytes to the answer's, over transports that only count. Three clients' heads
and four workers with idle connections; every answer comes in one read (or, streamed, in nine). The best of many short
runs is reported, the access log's encoding included. Machines differ from minute
to minute: the yardstick, a fixed loop measured between the runs, says by how much.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from tidegate_crds.decoding import decode_router_config
from tidegate_router.gateway.client_connection import ClientConnection
from tidegate_router.process import RouterProcess
from tidegate_router.telemetry.access_log import AccessLog
from tidegate_router.upstream.connection import UpstreamConnection

from bench.report import Row, write_report
from bench.scheduling import body_of

_WORKERS = 4
_CONVERSATIONS = 32
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\ncontent-type: application/json\r\n"
    b"accept: */*\r\nuser-agent: bench\r\ncontent-length: %d\r\n\r\n"
)
_ANSWER = (
    b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":2,"total_tokens":502,'
    b'"prompt_tokens_details":{"cached_tokens":400}}}'
)
_EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"tide"}}]}\n\n'
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Path:
    """One way through the router; `answer` gives the reads of the n-th answer."""

    name: str
    prompt_bytes: int
    answer: Callable[[int], list[bytes]]


def _plain(_: int) -> list[bytes]:
    return [
        b"HTTP/1.1 200 OK\r\nserver: bench\r\ndate: Tue, 01 Dec 2026 10:00:00 GMT\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: keep-alive\r\n\r\n%b"
        % (len(_ANSWER), _ANSWER),
    ]


def _with_own_id(number: int) -> list[bytes]:
    return [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: req-%x\r\n\r\n%b"
        % (len(_ANSWER), number, _ANSWER),
    ]


def _streamed(_: int) -> list[bytes]:
    event = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
    return [_STREAM_HEAD + event, *[event] * 7, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"]


PATHS = (
    Path("2 KB prompt", 2_048, _plain),
    Path("64 KB prompt", 65_536, _plain),
    Path("2 KB prompt, the worker says the request's id", 2_048, _with_own_id),
    Path("2 KB prompt, 8 streamed tokens", 2_048, _streamed),
)


class _CountingTransport:
    """Takes what is written, and tells who wrote."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        self._on_write = on_write
        self.writes = 0

    def write(self, data: bytes) -> None:  # noqa: ARG002 - counted, not kept
        self.writes += 1
        self._on_write()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""

    def abort(self) -> None:
        raise RuntimeError("the router dropped a connection")

    close = write_eof = pause_reading = resume_reading = abort


class _Bench:
    """A router whose sockets are lists, and a client of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        urls = [{"url": f"http://127.0.0.1:{9_000 + number}"} for number in range(_WORKERS)]
        config = decode_router_config(
            {"apiVersion": "router.tidegate.dev/v1alpha1", "kind": "RouterConfig", "endpoints": urls}
        )
        self.log = AccessLog(lambda _: True)
        self._process = process = RouterProcess(config, loop, self.log)
        self._asked: list[UpstreamConnection] = []
        for endpoint in process.table.snapshot.endpoints:
            process.table.set_ready(endpoint.slot, ready=True)
            connection = UpstreamConnection(process.pools.of(endpoint), process.wheel)
            connection.connection_made(self._transport(partial(self._asked.append, connection)))
            process.pools.of(endpoint).give_back(connection)
        self._client = ClientConnection(process.gateway, process.gateway.limits, process.gateway.timeouts)
        self._client.connection_made(self._transport(lambda: None))
        self._answers = 0

    def _transport(self, on_write: Callable[[], None]) -> asyncio.Transport:
        return cast("asyncio.Transport", _CountingTransport(on_write))

    def run(self, requests: list[bytes], answer: Callable[[int], list[bytes]]) -> None:
        """Send each request and let a worker answer it."""
        for request in requests:
            self._client.data_received(request)
            connection = self._asked[-1]
            self._asked.clear()
            self._answers += 1
            for read in answer(self._answers):
                connection.data_received(read)
        self.log.flush()

    def require_idle(self) -> None:
        """Everything was answered and given back."""
        in_flight = self._process.table.load.in_flight_requests
        if any(in_flight):
            raise RuntimeError(f"requests are left in flight: {in_flight}")


def _yardstick() -> None:
    counts: dict[int, int] = {}
    for number in range(250):
        counts[number & 63] = len(b"%d %b" % (number, b"tide")) + counts.get(number & 31, 0)


def measure(bench: _Bench, path: Path, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU per request and per yardstick, the best run of those that fit into that time."""
    bodies = [body_of(path.prompt_bytes, seed) for seed in range(_CONVERSATIONS)]
    requests = [_HEAD % len(body) + body for body in bodies]
    bench.run(requests * 4, path.answer)
    gc.collect()
    runs = 12 if path.prompt_bytes < 10_000 else 6
    best = best_yardstick = float("inf")
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        some = [requests[(turn + number) % len(requests)] for number in range(runs)]
        turn += runs
        before = time.process_time()
        bench.run(some, path.answer)
        between = time.process_time()
        _yardstick()
        best = min(best, (between - before) / runs * 1e6)
        best_yardstick = min(best_yardstick, (time.process_time() - between) * 1e6)
    bench.require_idle()
    return best, best_yardstick


async def _run(options: argparse.Namespace) -> None:
    bench = _Bench(asyncio.get_running_loop())
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    rows = []
    for path in PATHS:
        ours, yardstick = measure(bench, path, options.seconds)
        rows.append(Row(f"{path.name}: CPU per request", ours, "us", "yardstick", yardstick))
    write_report("gateway_path", rows)
    if options.profile:
        requests = [_HEAD % len(body) + body for body in (body_of(2_048, seed) for seed in range(_CONVERSATIONS))] * 100
        profile = cProfile.Profile()
        profile.runcall(bench.run, requests, _plain)
        print(f"profile of {len(requests)} requests of 2 KB")
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway_path", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each figure (default 2)")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, call by call")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
