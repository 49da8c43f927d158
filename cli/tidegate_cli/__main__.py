"""Entry point of `tidegate`: what a person can mend is one message and exit code 2, never a traceback."""

import contextlib
import errno
import os
import sys

from tidegate_cli.output import WatchedOutput

READER_LEFT_EXIT = 141
"""What a shell gives for a program that wrote to a pipe without a reader (128 + SIGPIPE)."""

_MACHINE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}
    | {errno.ENOMEM, errno.EAGAIN}
)
"""Numbers of operating system errors that the machine's owner can mend, and no programmer."""


def main() -> None:
    """Run the command line; ends the process."""
    output = WatchedOutput()
    code = _run(output)
    output.close()
    if output.error is not None and not isinstance(output.error, BrokenPipeError):
        _say(f"error: cannot write to standard output: {output.error.strerror}")
        code = code or 1
    sys.exit(code)


def _run(output: WatchedOutput) -> int:
    """Run the command; its exit code."""
    from tidegate_cli.app import app

    try:
        app()
    except SystemExit as ended:
        # Typer answers a reader that left with 1, which would say that the command itself failed.
        if isinstance(ended.__context__, BrokenPipeError):
            return READER_LEFT_EXIT
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return READER_LEFT_EXIT
    except Exception as error:  # noqa: BLE001 - the root of the program: every error becomes a message
        if error is output.error:
            return 1
        return _report(error)
    return 0


def _report(error: Exception) -> int:
    from tidegate_operator.local.errors import LocalError
    from tidegate_operator.plan.local import PlanError

    from tidegate_cli.errors import CommandError

    if isinstance(error, (CommandError, LocalError, PlanError)):
        _say(f"error: {error}")
        return error.exit_code if isinstance(error, CommandError) else 2
    if isinstance(error, ModuleNotFoundError):
        _say(f"error: {error}; install everything with: pip install 'tidegate[router,worker]'")
        return 2
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
        where = f" ({error.filename})" if error.filename else ""
        _say(f"error: {error.strerror}{where}")
        return 2
    _say(f"error: this is a bug in tidegate: {type(error).__name__}: {error}")
    if os.environ.get("TIDEGATE_TRACEBACK"):
        raise error
    _say("set TIDEGATE_TRACEBACK=1 to see where it happened")
    return 1


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
