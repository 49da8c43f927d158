"""A local pool of the real router and of simulated workers: the demo, crashes under its feet, nothing left."""

import http.client
import json
import os
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from local_pool import TidegateCommand, all_gone, interrupt, pool_document, process_ids
from waiting import eventually

SIMULATED = ("--worker-module", "sim_process")


@pytest.fixture
def tidegate(tmp_path: Path) -> TidegateCommand:
    return TidegateCommand(tmp_path, flags=SIMULATED)


def ask(endpoint: str, text: str) -> tuple[int, str | None]:
    """Status and serving worker of one short chat."""
    target = urlsplit(endpoint)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
    body: dict[str, Any] = {"model": "local", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"x-tidegate-debug": "1"})
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("x-tidegate-endpoint")
    finally:
        connection.close()


def descendants(pid: int) -> list[int]:
    return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]


def test_the_demo_shows_cached_turns_and_ends_by_itself(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("sim", replicas=2))
    done = tidegate.run("demo", str(manifest), "--once", "--json", timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", report["endpoint"])
    turns = report["turns"]
    assert [(turn["conversation"], turn["turn"]) for turn in turns] == [(c, n) for n in (1, 2, 3) for c in ("A", "B")]
    assert turns[0]["cached_tokens"] == 0
    assert all(turn["cached_tokens"] / turn["prompt_tokens"] >= 0.9 for turn in turns[1:])
    assert {turn["worker"] for turn in turns} <= {"cpu-0", "cpu-1"}
    assert all(turn["ttft_seconds"] > 0 for turn in turns)
    assert "of their prompt tokens came from a cache" in done.stderr
    assert tidegate.state()["phase"] == "Stopped"


def test_a_demo_stays_up_until_ctrl_c_and_avoids_a_port_in_use(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("sim", name="first"))
    other = tidegate.manifest(pool_document("sim", name="first"), "other.yaml")
    with tidegate.running("up", str(manifest)):
        port = int(tidegate.wait_for("Ready", "first")["endpoint"].rpartition(":")[2])
        refused = tidegate.run("demo", str(other), "--once")
        assert (refused.returncode, refused.stdout) == (2, "")
        second = tidegate.manifest(pool_document("sim", name="second", port=port), "second.yaml")
        with tidegate.running("demo", str(second)) as process:
            assert process.stdout is not None
            seen = ""
            while "the pool stays up" not in seen:
                line = process.stdout.readline()
                assert line, seen
                seen += line
            everyone = descendants(process.pid)
            interrupt(process)
            process.communicate(timeout=30)
        assert process.returncode == 0
        assert f"port {port} is in use by another program; this demo takes port" in seen
        all_gone(everyone)


def test_ctrl_c_during_the_conversations_ends_everything_quietly(tidegate: TidegateCommand) -> None:
    document = pool_document("sim", worker={"args": ["--decode-step-seconds", "0.2"]})
    with tidegate.running("demo", str(tidegate.manifest(document)), "--once") as process:
        tidegate.wait_for("Ready")
        everyone = descendants(process.pid)
        interrupt(process)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error" not in out
    all_gone(everyone)


def test_a_killed_worker_comes_back_and_is_used_again(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("sim", replicas=2))
    with tidegate.running("up", str(manifest)) as process:
        state = tidegate.wait_for("Ready", seconds=60)
        endpoint = state["endpoint"]
        worker = process_ids(state)["cpu-1"]
        family = descendants(worker)
        os.kill(worker, signal.SIGKILL)
        assert [ask(endpoint, f"question {number}")[0] for number in range(8)] == [200] * 8
        all_gone(family)
        eventually(lambda: process_ids(tidegate.state()).get("cpu-1"), lambda pid: pid not in (None, worker))
        tidegate.wait_for("Ready", seconds=60)
        os.kill(process_ids(tidegate.state())["cpu-0"], signal.SIGKILL)
        assert eventually(lambda: ask(endpoint, "is anybody there?"), lambda got: got[0] == 200)[1] == "cpu-1"
        everyone = descendants(process.pid)
        process.kill()
        process.communicate(timeout=30)
    all_gone(everyone)
