import json
import os
from pathlib import Path

from tidegate_router.telemetry.access_log import BATCH_ENTRIES, AccessEntry, AccessLog
from tidegate_router.telemetry.log_sink import LogSink


def entry(number: int = 0, **fields: object) -> AccessEntry:
    known = {"time": 1.5, "id": f"r{number}", "method": "POST", "path": "/v1/completions", "status": 200}
    return AccessEntry(**(known | {"duration_seconds": 0.25} | fields))  # type: ignore[arg-type]


class Lines:
    def __init__(self, *, has_room: bool = True) -> None:
        self.batches: list[bytes] = []
        self.has_room = has_room

    def __call__(self, batch: bytes) -> bool:
        if self.has_room:
            self.batches.append(batch)
        return self.has_room


def test_a_line_per_request_without_what_is_unknown() -> None:
    lines = Lines()
    log = AccessLog(lines)
    log.record(entry(1, model="m", endpoint="worker-0", attempts=2, cached_tokens=0, stream=True))
    log.record(entry(2, error="cut\nnext", client_aborted=True))
    assert lines.batches == []
    log.flush()
    log.flush()
    (batch,) = lines.batches
    assert batch.endswith(b"\n")
    first, second = [json.loads(line) for line in batch.splitlines()]
    assert first == {
        "time": 1.5,
        "id": "r1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "duration_seconds": 0.25,
        "model": "m",
        "endpoint": "worker-0",
        "attempts": 2,
        "cached_tokens": 0,
        "stream": True,
    }
    assert second["error"] == "cut\nnext"
    assert second["client_aborted"] is True


def test_full_batch_goes_out_by_itself_so_memory_is_bounded() -> None:
    lines = Lines()
    log = AccessLog(lines)
    for number in range(3 * BATCH_ENTRIES + 1):
        log.record(entry(number))
    assert [batch.count(b"\n") for batch in lines.batches] == [BATCH_ENTRIES] * 3
    assert len(log._pending) == 1


def test_lines_without_room_are_counted() -> None:
    log = AccessLog(Lines(has_room=False))
    for number in range(3):
        log.record(entry(number))
    log.flush()
    assert log.dropped == 3


def test_sink_appends_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("before\n")
    with LogSink(str(path)) as sink:
        assert all(sink(b"%d\n" % number) for number in range(100))
    assert path.read_text() == "before\n" + "".join(f"{number}\n" for number in range(100))
    assert not sink(b"late\n")


def test_sink_whose_reader_is_stuck_drops_instead_of_growing(tmp_path: Path) -> None:
    fifo = tmp_path / "stuck"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    sink = LogSink(str(fifo), max_pending_bytes=1 << 20)
    taken = sum(sink(b"x" * 65_536) for _ in range(100))
    assert 1 <= taken < 60
    os.close(reader)
    sink.close()
    assert sink.failed_writes > 0
