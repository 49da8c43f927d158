"""Pools on this machine: builders of manifests and plans, and the `tidegate` command as users run it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from tidegate_crds.decoding import decode_pool
from tidegate_crds.inference_pool import InferencePool
from waiting import eventually

SUPPORT = Path(__file__).parent
FAKE = ("--worker-module", "fake_process", "--router-module", "fake_process")


def pool_document(
    model: str = "steady",
    *,
    name: str = "local",
    replicas: int = 1,
    port: int = 0,
    worker: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An InferencePool as plain data, with one set of workers called `cpu`."""
    return {
        "apiVersion": "tidegate.dev/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": model},
            "workers": [{"name": "cpu", "replicas": replicas, **(worker or {})}],
            "router": {"listen": {"port": port}, **(router or {})},
        },
    }


def make_pool(model: str = "steady", **fields: Any) -> InferencePool:
    """The same, decoded."""
    return decode_pool(pool_document(model, **fields))


@dataclass
class TidegateCommand:
    """Runs `tidegate` with a state folder of its own."""

    folder: Path
    flags: tuple[str, ...] = FAKE
    environment: dict[str, str] = field(default_factory=dict)

    def manifest(self, document: dict[str, Any] | str, name: str = "pool.yaml") -> Path:
        """Write a manifest and return its path."""
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
        return path

    def run(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.argv(*arguments), capture_output=True, text=True, check=False, timeout=timeout, env=self.environ()
        )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command beside the test; SIGTERM, and SIGKILL after a while, at the end."""
        with subprocess.Popen(
            self.argv(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environ()
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                try:
                    process.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()

    def status(self) -> list[dict[str, Any]]:
        """What `tidegate status --json` says."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        pools: list[dict[str, Any]] = json.loads(done.stdout)
        return pools

    def state(self, pool: str = "local") -> dict[str, Any]:
        """The state file, read directly; empty when there is none yet."""
        path = self.folder / "state" / pool / "state.json"
        state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return state

    def wait_for(self, phase: str, pool: str = "local", seconds: float = 30.0) -> dict[str, Any]:
        """Wait until the pool is in a phase; its state."""
        state: dict[str, Any] = eventually(
            lambda: self.state(pool), lambda state: state.get("phase") == phase, seconds=seconds
        )
        return state

    def argv(self, *arguments: str) -> list[str]:
        """The whole command."""
        flags = self.flags if arguments[0] in ("up", "demo") else ()
        return [sys.executable, "-P", "-m", "tidegate_cli", *arguments, *flags]

    def environ(self) -> dict[str, str]:
        """The environment of every command."""
        own = {"TIDEGATE_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(SUPPORT), "COLUMNS": "200"}
        return {**os.environ, **own, **self.environment}


def process_ids(state: dict[str, Any]) -> dict[str, int]:
    """Pids in a state file, by process name."""
    return {each["name"]: each["identity"]["pid"] for each in state["processes"] if each["identity"] is not None}


def gone(pid: int) -> bool:
    """Whether no process of that pid runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def all_gone(pids: list[int]) -> None:
    """Wait until none of the processes runs."""
    eventually(lambda: [pid for pid in pids if not gone(pid)], lambda left: not left, seconds=15.0)


def interrupt(process: subprocess.Popen[str]) -> None:
    """What Ctrl-C sends."""
    process.send_signal(signal.SIGINT)
