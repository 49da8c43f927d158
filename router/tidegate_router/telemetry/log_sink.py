"""`LogSink`: writes log batches to a file or to standard output from a thread, so that a slow reader stops nobody."""

import os
import threading
from collections import deque
from types import TracebackType
from typing import Self

MAX_PENDING_BYTES = 8 << 20
CLOSE_SECONDS = 2.0
STDOUT = "-"


class LogSink:
    """Owns the descriptor of one log; call it with bytes, close it at the end.

    A failed write (disk full, reader gone) loses that batch and no other; `failed_writes` counts them.
    """

    def __init__(self, path: str, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        """Open `path` for appending, `-` is standard output. OSError: it cannot be opened."""
        self.failed_writes = 0
        self._max_pending_bytes = max_pending_bytes
        self._descriptor = os.dup(1) if path == STDOUT else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._batches: deque[bytes] = deque()
        self._pending_bytes = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_batches, name="log-sink", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, batch: bytes) -> bool:
        """Queue a batch; False when there is no room for it, or after `close`. Never blocks on the file."""
        with self._changed:
            if self._closing or self._pending_bytes + len(batch) > self._max_pending_bytes:
                return False
            self._batches.append(batch)
            self._pending_bytes += len(batch)
            self._changed.notify()
        return True

    def close(self) -> None:
        """Write what is queued, for at most `CLOSE_SECONDS`; a reader that is stuck does not hold up the exit."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _write_batches(self) -> None:
        while True:
            with self._changed:
                while not self._batches and not self._closing:
                    self._changed.wait()
                if not self._batches:
                    os.close(self._descriptor)
                    return
                batch = self._batches.popleft()
            try:
                _write_all(self._descriptor, batch)
            except OSError:
                self.failed_writes += 1
            with self._changed:
                self._pending_bytes -= len(batch)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
