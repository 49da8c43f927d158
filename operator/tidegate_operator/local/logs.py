"""Log files of processes: rotating, their last lines, and following them."""

import codecs
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_LOG_BYTES = 64 << 20
_TAIL_BLOCK = 16 << 10
_MAX_TAIL_BYTES = 8 << 20
_MAX_LINE = 2_000


def rotate(path: Path) -> None:
    """Keep the log of the run before as `NAME.log.1`."""
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(path.name + ".1"))


def shorten(path: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Move a log that grew over `max_bytes` to `NAME.log.1` while its writer goes on; whether it was moved.

    Writers append (O_APPEND), so emptying the file leaves no hole. What is written between copy and truncation is
    lost: the price of a bound that needs nothing from the writer.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(path, path.with_name(path.name + ".1"))
        with path.open("r+b") as log:
            log.truncate(0)
    except OSError:
        return False
    return True


def size(path: Path) -> int:
    """Bytes in a log now; 0 for a missing file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_lines(path: Path, count: int, *, begin: int = 0, end: int | None = None) -> list[str]:
    """The last `count` lines between two bytes (None: the file's end); at most 8 MiB; none for a missing file."""
    if count <= 0:
        return []
    try:
        with path.open("rb") as log:
            position = log.seek(0, 2) if end is None else end
            tail = b""
            while position > begin and tail.count(b"\n") <= count and len(tail) < _MAX_TAIL_BYTES:
                step = min(_TAIL_BLOCK, position - begin)
                position -= step
                log.seek(position)
                tail = log.read(step) + tail
    except OSError:
        return []
    return tail.decode(errors="replace").splitlines()[-count:]


def reason_lines(path: Path, count: int = 8, *, begin: int = 0) -> str:
    """The last lines from byte `begin` on that say anything, each of bounded length, for a message."""
    lines = [line for line in last_lines(path, count * 4, begin=begin) if line.strip()]
    return "\n".join(line[:_MAX_LINE] for line in lines[-count:])


def follow(path: Path, position: int, *, more: Callable[[], bool], poll_seconds: float = 0.2) -> Iterator[str]:
    """Text of `path` from byte `position` on, until `more()` says there will be no more; survives rotation.

    `more` is asked before each look, so that what was written before the end is still seen.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    inode = path.stat().st_ino if path.exists() else None
    while True:
        ongoing = more()
        with contextlib.suppress(FileNotFoundError), path.open("rb") as log:
            status = path.stat()
            if status.st_ino != inode or status.st_size < position:
                inode, position = status.st_ino, 0
            log.seek(position)
            while chunk := log.read(_TAIL_BLOCK):
                position += len(chunk)
                yield decoder.decode(chunk)
        if not ongoing:
            return
        time.sleep(poll_seconds)
