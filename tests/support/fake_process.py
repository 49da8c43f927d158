"""A stand-in for a worker or router in tests of the supervisor: a real process with a real HTTP server.

Run as `python -m fake_process`; takes the flags of `tidegate-worker` (a router's port is read from its configuration).
What it does is asked for through `--model`: `steady`, `slow:SECONDS` (not ready before), `crash:FILE` (exits with 1
until FILE exists), `user-error` (exits with 2), `stubborn` (ignores SIGTERM), `engine` (has a child of its own).
"""

import argparse
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tidegate_crds.decoding import load_router_config


class _Handler(http.server.BaseHTTPRequestHandler):
    ready_at = 0.0

    def do_GET(self) -> None:
        status = 200 if time.monotonic() >= self.ready_at else 503
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _behave(behaviour: str) -> None:
    kind, _, detail = behaviour.partition(":")
    if kind == "user-error":
        sys.stderr.write("no such model: nowhere.gguf\n")
        sys.exit(2)
    if kind == "crash" and not Path(detail).exists():
        sys.stderr.write("out of luck\n")
        sys.exit(1)
    if kind == "slow":
        _Handler.ready_at = time.monotonic() + float(detail)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "engine":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        _say(f"engine {child.pid}")


def main() -> None:
    """Serve `/ready` until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--model", default="steady")
    arguments, _ = parser.parse_known_args()
    port = arguments.port
    if arguments.config is not None:
        port = load_router_config(arguments.config.read_text()).listen.port
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _behave(arguments.model)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    _say(f"serving on {port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
