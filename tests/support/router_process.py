"""The router as users run it, `python -m tidegate_router --config FILE`, in a process of its own, seen from outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import raw_http
from waiting import eventually

START_SECONDS = 20.0
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    """A TCP port of loopback that nothing listens on now."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


class RouterProcess:
    """A running router in front of `endpoints` (base URLs). A context manager that ends it.

    `settings` are fields of a RouterConfig beside the endpoints, as they stand in YAML.
    """

    def __init__(self, endpoints: Sequence[str], settings: Mapping[str, Any] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-router-")
        self._endpoints = endpoints
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def folder(self) -> Path:
        """Where its configuration, log and access log are."""
        return Path(self._folder.name)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self, *, ready: bool = True) -> None:
        """Start it; with `ready` wait until /ready says that it can serve."""
        config = self.folder / "router.yaml"
        document = {
            "apiVersion": "router.tidegate.dev/v1alpha1",
            "kind": "RouterConfig",
            "listen": {"host": "127.0.0.1", "port": self.port},
            "accessLog": {"path": str(self.folder / "access.log")},
            **self._settings,
            "endpoints": [{"url": url} for url in self._endpoints],
        }
        config.write_text(json.dumps(document))
        with (self.folder / "router.log").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "always", "-m", "tidegate_router", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
        eventually(self._serving, lambda serving: serving or not ready, seconds=START_SECONDS)

    def _serving(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the router ended with {self._process.returncode}:\n{self.log()}")
        try:
            answer = raw_http.ask(self.port, raw_http.get("/ready"), timeout_seconds=2)
        except (OSError, raw_http.BrokenAnswer):
            return False
        return answer is not None and answer.status == 200

    def assert_idle(self) -> None:
        """Wait until no attempt runs and no estimated token is counted at any endpoint."""
        names = ("tidegate_router_in_flight_requests", "tidegate_router_in_flight_tokens")
        eventually(lambda: {name: total(self.metrics(), name) for name in names}, lambda found: not any(found.values()))

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after a while; returns the exit code."""
        assert self._process is not None, "not started"
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """All that it has written to its standard streams."""
        return (self.folder / "router.log").read_text(errors="replace")

    def access_log(self) -> list[dict[str, Any]]:
        """The access log's entries so far."""
        path = self.folder / "access.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def resident_bytes(self) -> int:
        """Its resident memory."""
        memory: int = psutil.Process(self.pid).memory_info().rss
        return memory

    def metrics(self) -> Samples:
        """Its /metrics page."""
        return scrape(self.port)

    def assert_clean_log(self) -> None:
        """No traceback, no warning of Python's, nothing that was never awaited or never closed."""
        log = self.log()
        for sign in ("Traceback (most recent call last)", "never awaited", "ResourceWarning", "Fatal error"):
            assert sign not in log, f"{sign!r} in the router's log:\n{log[-4000:]}"


def scrape(port: int) -> Samples:
    """The /metrics page of a process on loopback, as {(name, labels): value}."""
    answer = raw_http.ask(port, raw_http.get("/metrics", "connection: close"))
    assert answer is not None, "no answer to /metrics"
    assert answer.status == 200, f"/metrics answered {answer.status}: {answer.body[:200]!r}"
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    """Sum of the samples of a metric that carry these labels; KeyError when there is no such metric."""
    wanted = set(labels.items())
    values = [value for (sample, found), value in samples.items() if sample == name and wanted <= found]
    if not any(sample == name for sample, _ in samples):
        raise KeyError(f"no metric {name}; there are {sorted({sample for sample, _ in samples})}")
    return sum(values)
