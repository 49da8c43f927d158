"""A worker's start, drain and death, as its clients and its supervisor see them."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sim_worker_process import WorkerProcess, sim_worker
from waiting import eventually
from worker_observation import child_processes, metrics, sse_events

LONG = {"model": "sim", "prompt": "go", "max_tokens": 4000, "stream": True}
SLOW = ("--decode-step-seconds", "0.02")


class Stream(threading.Thread):
    """One streamed completion in the background."""

    def __init__(self, worker: WorkerProcess, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._request = {"url": worker.url + "/v1/completions", "json": {**LONG, **fields}, "timeout": 30}
        self.begun = threading.Event()
        self.text = ""
        self.status = 0
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", **self._request) as answer:
            self.status = answer.status_code
            for piece in answer.iter_text():
                self.text += piece
                self.begun.set()


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    return thread, results


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones() -> None:
    with sim_worker(*SLOW) as worker:
        stream = Stream(worker, max_tokens=60)
        assert stream.begun.wait(10)
        worker.process.send_signal(signal.SIGTERM)
        ready = eventually(lambda: httpx.get(worker.url + "/ready"), lambda answer: answer.status_code == 503)
        assert ready.json() == {"status": "draining"}
        assert httpx.get(worker.url + "/health").status_code == 200
        refused = httpx.post(worker.url + "/v1/completions", json={**LONG, "stream": False})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        stream.join(15)
        assert sse_events(stream.text)[-1] == "[DONE]"
        assert worker.process.wait(10) == 0


def test_after_drain_seconds_open_streams_end_with_one_error_event() -> None:
    with sim_worker(*SLOW, "--drain-seconds", "0.3") as worker:
        stream = Stream(worker)
        whole, results = in_background(
            lambda: httpx.post(worker.url + "/v1/completions", json={**LONG, "stream": False}, timeout=30),
        )
        assert stream.begun.wait(10)
        eventually(lambda: in_flight(worker), lambda count: count == 2)
        worker.process.terminate()
        stream.join(10)
        whole.join(10)
        events = sse_events(stream.text)
        assert events[-1]["error"]["code"] == "draining"
        assert "[DONE]" not in events
        assert sum("error" in event for event in events) == 1
        assert (results[0].status_code, results[0].json()["error"]["code"]) == (503, "draining")
        assert worker.process.wait(10) == 0


def in_flight(worker: WorkerProcess) -> float:
    return metrics(worker)["tidegate_worker_requests_in_flight"]


def test_a_second_signal_ends_the_drain_at_once() -> None:
    with sim_worker(*SLOW) as worker:
        stream = Stream(worker)
        assert stream.begun.wait(10)
        worker.process.send_signal(signal.SIGINT)
        eventually(lambda: httpx.get(worker.url + "/ready").status_code, lambda status: status == 503)
        began = time.monotonic()
        worker.process.send_signal(signal.SIGINT)
        assert worker.process.wait(10) == 1
        assert time.monotonic() - began < 5
        stream.join(5)
        assert sse_events(stream.text)[-1]["error"]["code"] == "draining"


def test_a_dead_engine_ends_streams_with_an_error_and_the_process_with_1() -> None:
    with sim_worker(*SLOW) as worker:
        stream = Stream(worker)
        whole, results = in_background(
            lambda: httpx.post(worker.url + "/v1/completions", json={**LONG, "stream": False}, timeout=30),
        )
        assert stream.begun.wait(10)
        eventually(lambda: in_flight(worker), lambda count: count == 2)
        (engine,) = child_processes(worker.process.pid)
        os.kill(engine, signal.SIGKILL)
        stream.join(10)
        whole.join(10)
        assert "error" in sse_events(stream.text)[-1]
        assert results[0].status_code == 503
        assert worker.process.wait(10) == 1
        (line,) = worker.errors().splitlines()
        assert line == "tidegate-worker: the engine process was killed by signal 9"


def test_the_engine_never_outlives_a_killed_server() -> None:
    with sim_worker() as worker:
        (engine,) = child_processes(worker.process.pid)
        worker.process.kill()
        worker.process.wait()
        eventually(lambda: alive(engine), lambda still: not still)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


STUCK_LOADING = """
import sys, time
from tidegate_worker.server.lifecycle import ModelSource, ServerSettings, run
settings = ServerSettings("127.0.0.1", int(sys.argv[1]), 0, ("m",), 1000, 1.0)
sys.exit(run(settings, ModelSource(lambda: time.sleep(300), lambda: None)))
"""


def test_a_worker_says_so_while_it_loads_and_can_be_stopped_then() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", STUCK_LOADING, str(port)])
    try:
        health = eventually(
            lambda: try_get(f"http://127.0.0.1:{port}/health"), lambda answer: answer is not None, seconds=30
        )
        assert health is not None
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def try_get(url: str) -> httpx.Response | None:
    try:
        return httpx.get(url)
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("flag", ["--port", "--telemetry-port"])
def test_a_port_in_use_is_one_line_and_exit_code_2(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = {"--port": "--telemetry-port", "--telemetry-port": "--port"}[flag]
        ended = run("tidegate_worker.sim", flag, str(port), other, "0")
    assert ended.returncode == 2
    assert ended.stderr == f"tidegate-worker: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(
    "uri", ["/no/such/model.gguf", "package://no-such-distribution/x.gguf", "hf://", "ftp://x", __file__]
)
def test_a_wrong_model_uri_is_one_line_and_exit_code_2(uri: str) -> None:
    ended = run("tidegate_worker", "--model", uri, "--port", "0")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tidegate-worker: ")


def test_a_missing_model_is_told_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys; from tidegate_worker.__main__ import main; code = main(['--model', '/no/such', '--port', '0']); "
        "print(code, sorted({'torch', 'numpy', 'grpc', 'uvicorn', 'tokenizers'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "2 []\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--threads", "100000"), "argument --threads: expected 1 to 1024, got 100000"),
        (("--context-tokens", "15"), "argument --context-tokens: expected at least 16, got 15"),
        (("--served-name", ""), "argument --served-name: expected a name"),
        (("--kv-blocks", "9", "--kv-memory-bytes", "99"), "not allowed with argument --kv-blocks"),
    ],
)
def test_a_flag_out_of_bounds_ends_with_its_name_and_exit_code_2(flags: tuple[str, ...], words: str) -> None:
    ended = run("tidegate_worker", "--model", "x.gguf", *flags)
    assert ended.returncode == 2
    assert words in ended.stderr.splitlines()[-1]


def run(module: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
