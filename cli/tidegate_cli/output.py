"""Standard output that remembers when it could not be written, whoever caught the error."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _RememberingFile(io.FileIO):
    error: OSError | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


class WatchedOutput:
    """Stands between `sys.stdout` and its descriptor for the life of the process."""

    def __init__(self) -> None:
        self._file: _RememberingFile | None = None
        own = sys.__stdout__
        if own is None:
            # Started with standard output closed: no file of ours may get its descriptor.
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
        elif sys.stdout is own:
            self._file = _RememberingFile(own.fileno(), "w", closefd=False)
            sys.stdout = io.TextIOWrapper(
                io.BufferedWriter(self._file),
                encoding=own.encoding,
                errors=own.errors,
                line_buffering=own.line_buffering,
            )

    @property
    def error(self) -> OSError | None:
        """The last error of writing, if there was any."""
        return None if self._file is None else self._file.error

    def close(self) -> None:
        """Write out what is left; what cannot be written is dropped, so that the interpreter does not fail at it."""
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
