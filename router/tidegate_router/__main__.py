"""`tidegate-router`: reads its flags and config, runs one router process.

Exit codes: 0 after a drain, 1 when a second signal cut it short, 2 for a config or an address that cannot be used.
"""

import sys
from collections.abc import Sequence

import uvloop

from tidegate_router.config import load_config, printed
from tidegate_router.flags import build_parser
from tidegate_router.process import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    flags = build_parser().parse_args(arguments)
    try:
        config = load_config(flags.config, flags.listen)
    except ValueError as error:
        print(f"tidegate-router: {error}", file=sys.stderr)
        return 2
    if flags.print_config:
        print(printed(config), end="")
        return 0
    try:
        uvloop.run(serve(config))
    except OSError as error:
        # Only the access log is a file: what names none is the address.
        where = f"accessLog.path: {error.filename}" if error.filename else f"{config.listen.host}:{config.listen.port}"
        print(f"tidegate-router: {where}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
