"""Entry point of `tidegate`: what a person can mend is one message and exit code 2, never a traceback."""

import os
import sys


def main() -> None:
    """Run the command line; ends the process."""
    from tidegate_cli.app import app

    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe had enough; nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:  # noqa: BLE001 - the root of the program: every error becomes a message
        sys.exit(_report(error))


def _report(error: Exception) -> int:
    from tidegate_operator.local.errors import LocalError
    from tidegate_operator.plan.local import PlanError

    from tidegate_cli.errors import CommandError

    if isinstance(error, (CommandError, LocalError, PlanError)):
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, CommandError) else 2
    if isinstance(error, ModuleNotFoundError):
        print(f"error: {error}; install everything with: pip install 'tidegate[router,worker]'", file=sys.stderr)
        return 2
    print(f"error: this is a bug in tidegate: {type(error).__name__}: {error}", file=sys.stderr)
    if os.environ.get("TIDEGATE_TRACEBACK"):
        raise error
    print("set TIDEGATE_TRACEBACK=1 to see where it happened", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
