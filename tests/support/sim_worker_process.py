"""A real worker process (simulated or with a model) on free loopback ports, for tests that need real sockets."""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 15.0


@dataclass
class WorkerProcess:
    """A worker that has said it is ready."""

    process: "subprocess.Popen[str]"
    http: str
    """host:port"""
    telemetry: str
    """host:port"""
    model: str
    start_seconds: float
    """From the start of the process to its ready line."""
    error_log: Path

    @property
    def url(self) -> str:
        """Base of the HTTP API, without /v1."""
        return f"http://{self.http}"

    @property
    def host(self) -> str:
        return self.http.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.http.rpartition(":")[2])

    def stop(self) -> int:
        """SIGTERM, wait, SIGKILL if need be; the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def errors(self) -> str:
        """What the process wrote to stderr so far."""
        return self.error_log.read_text()


@contextlib.contextmanager
def sim_worker(*flags: str) -> Iterator[WorkerProcess]:
    """A `tidegate sim-worker` with these flags beside free ports, ended on exit. `--served-name` defaults to "sim"."""
    with worker_process("tidegate_worker.sim", *flags) as worker:
        yield worker


@contextlib.contextmanager
def worker_process(module: str, *flags: str) -> Iterator[WorkerProcess]:
    """`python -m module` with free ports, ready, ended on exit."""
    with tempfile.TemporaryDirectory(prefix="worker-") as folder:
        error_log = Path(folder) / "stderr"
        began = time.monotonic()
        with error_log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, "--port", "0", "--telemetry-port", "0", *flags],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        output = process.stdout
        assert output is not None
        worker = None
        try:
            fields = _ready_fields(process, output, error_log)
            seconds = time.monotonic() - began
            worker = WorkerProcess(process, fields["http"], fields["telemetry"], fields["model"], seconds, error_log)
            yield worker
        finally:
            if worker is not None:
                worker.stop()
            else:
                process.kill()
                process.wait()
            output.close()


def _ready_fields(process: "subprocess.Popen[str]", output: IO[str], error_log: Path) -> dict[str, str]:
    timer = threading.Timer(START_TIMEOUT_SECONDS, process.kill)
    timer.start()
    try:
        for line in output:
            words = line.split()
            if words[:2] == ["tidegate-worker", "ready"]:
                return dict(word.split("=", 1) for word in words[2:])
    finally:
        timer.cancel()
    code = process.wait()
    raise AssertionError(f"the worker ended with {code} before it was ready: {error_log.read_text()}")
