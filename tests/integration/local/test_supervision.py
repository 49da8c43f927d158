"""A supervisor over real processes: restarts, failures, and nothing left at the end, however the end comes."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from local_pool import TidegateCommand, all_gone, gone, interrupt, pool_document, process_ids
from waiting import eventually


@pytest.fixture
def tidegate(tmp_path: Path) -> TidegateCommand:
    return TidegateCommand(tmp_path)


def family(pids: list[int]) -> list[int]:
    """The processes and all their descendants."""
    return [each.pid for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]


def ports_of(state: dict) -> list[int]:
    return [int(process["url"].rpartition(":")[2]) for process in state["processes"]]


def nobody_listens(ports: list[int]) -> None:
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"port {port} is still served"


def test_ctrl_c_ends_everything_router_first(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("engine", replicas=2))
    with tidegate.running("up", str(manifest)) as process:
        state = tidegate.wait_for("Ready")
        everyone = family([process.pid])
        assert len(everyone) == 1 + 1 + 3 + 2  # supervisor, watchdog, processes, engines
        interrupt(process)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    all_gone(everyone)
    nobody_listens(ports_of(state))
    assert out.index("router       Stopped") < out.index("cpu-0        Stopped")
    assert re.search(r"pool local is Ready at http://127\.0\.0\.1:\d+/v1", out)
    assert "curl -N http://127.0.0.1:" in out
    assert tidegate.state()["phase"] == "Stopped"


@pytest.mark.parametrize("behaviour", ["steady", "engine", "stubborn"])
def test_a_killed_supervisor_leaves_nothing(tidegate: TidegateCommand, behaviour: str) -> None:
    manifest = tidegate.manifest(pool_document(behaviour))
    with tidegate.running("up", str(manifest)) as process:
        state = tidegate.wait_for("Ready")
        everyone = family([process.pid])
        process.kill()
        process.communicate(timeout=30)
    all_gone(everyone)
    nobody_listens(ports_of(state))
    [pool] = tidegate.status()
    assert (pool["phase"], pool["supervisorPid"], pool["processes"][0]["pid"]) == ("Dead", None, None)
    down = tidegate.run("down")
    assert (down.returncode, tidegate.status()) == (0, [])
    assert "its supervisor was dead" in down.stdout


def test_a_crashed_worker_comes_back_on_the_same_port_without_its_orphan(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("engine"))
    with tidegate.running("up", str(manifest)):
        before = tidegate.wait_for("Ready")
        worker = process_ids(before)["cpu-0"]
        orphans = family([worker])
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: process_ids(tidegate.state()).get("cpu-0"), lambda pid: pid not in (None, worker))
        after = tidegate.wait_for("Ready")
        all_gone(orphans)
        assert ports_of(after) == ports_of(before)
        [restarted, router] = after["processes"]
        assert (restarted["restarts"], router["restarts"]) == (1, 0)


def test_a_pool_that_serves_with_one_worker_of_two_is_degraded(tidegate: TidegateCommand, tmp_path: Path) -> None:
    luck = tmp_path / "luck"
    luck.touch()
    manifest = tidegate.manifest(pool_document(f"crash:{luck}", replicas=2))
    with tidegate.running("up", str(manifest)):
        before = tidegate.wait_for("Ready")
        luck.unlink()
        os.kill(process_ids(before)["cpu-1"], signal.SIGKILL)
        tidegate.wait_for("Degraded")
        assert "Degraded (1/2 workers Ready)" in tidegate.run("status").stdout
        luck.touch()
        tidegate.wait_for("Ready")


def test_a_state_that_cannot_be_written_is_told_once_and_written_later(
    tidegate: TidegateCommand, tmp_path: Path
) -> None:
    manifest = tidegate.manifest(pool_document())
    with tidegate.running("up", str(manifest)) as process:
        before = tidegate.wait_for("Ready")
        in_the_way = tmp_path / "state" / "local" / "state.draft"
        in_the_way.mkdir()
        os.kill(process_ids(before)["cpu-0"], signal.SIGKILL)
        eventually(lambda: tidegate.status()[0]["stale"], lambda stale: stale)
        assert "out of date" in tidegate.run("status").stdout
        in_the_way.rmdir()
        after = eventually(tidegate.state, lambda state: process_ids(state) != process_ids(before))
        assert after["processes"][0]["restarts"] == 1
        eventually(lambda: tidegate.status()[0]["stale"], lambda stale: not stale)
        interrupt(process)
        out, _ = process.communicate(timeout=30)
    assert out.count("cannot write the state folder") == 1
    assert out.count("the state folder can be written again") == 1


def test_down_stops_all_and_says_so_where_the_state_cannot_be_written(
    tidegate: TidegateCommand, tmp_path: Path
) -> None:
    tidegate.run("up", str(tidegate.manifest(pool_document())), "--detach")
    [pool] = tidegate.status()
    everyone = family([pool["supervisorPid"]])
    (tmp_path / "state" / "local" / "state.draft").mkdir()
    down = tidegate.run("down")
    assert (down.returncode, down.stdout) == (0, "pool local is down\n"), down.stderr
    all_gone(everyone)
    assert tidegate.status() == []


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_a_state_that_cannot_be_written_at_the_start_is_told_and_ends_with_2(
    tidegate: TidegateCommand, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    folder = tmp_path / "state" / "local"
    folder.mkdir(parents=True)
    (folder / "state.draft").mkdir()
    (folder / "router.draft").mkdir()
    done = tidegate.run("up", str(tidegate.manifest(pool_document())), *flags)
    assert done.returncode == 2
    assert done.stderr.count(f"cannot write the state folder {folder}: Is a directory") == 1
    assert "bug" not in done.stderr
    assert "Starting" not in done.stdout


def test_logs_into_a_pipe_that_closes_end_quietly(tidegate: TidegateCommand, tmp_path: Path) -> None:
    tidegate.run("up", str(tidegate.manifest(pool_document())), "--detach")
    try:
        (tmp_path / "state" / "local" / "logs" / "router.log").write_text("line\n" * 100_000)
        argv = tidegate.argv("logs", "router", "--tail", "100000")
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tidegate.environ()
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "line\n"
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == ""
            assert process.wait(timeout=30) == 141
    finally:
        tidegate.run("down")


def test_crashes_are_waited_out_longer_and_longer(tidegate: TidegateCommand, tmp_path: Path) -> None:
    luck = tmp_path / "luck"
    manifest = tidegate.manifest(pool_document(f"crash:{luck}"))
    with tidegate.running("up", str(manifest)) as process:
        eventually(lambda: tidegate.state().get("processes", [{}])[0].get("restarts", 0), lambda count: count >= 2)
        luck.touch()
        tidegate.wait_for("Ready")
        interrupt(process)
        out, _ = process.communicate(timeout=30)
    waits = [
        float(text) for text in re.findall(r"cpu-0 +Restarting ended with exit code 1 \(out of luck\); .* (\S+) s", out)
    ]
    assert waits[:2] == [0.5, 1.0]


def test_a_user_error_is_told_with_the_log_and_ends_with_2(tidegate: TidegateCommand) -> None:
    done = tidegate.run("up", str(tidegate.manifest(pool_document("user-error"))))
    assert done.returncode == 2
    assert re.search(
        r"error: pool local: cpu-0 failed; the last lines of .*cpu-0\.log:\n  no such model: nowhere", done.stderr
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert tidegate.state()["message"].startswith("cpu-0 failed")


def test_not_ready_in_time_is_told_and_ends_with_1(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("slow:600"))
    done = tidegate.run("up", str(manifest), "--timeout-seconds", "2")
    assert done.returncode == 1
    assert "error: pool local: not Ready within 2 s" in done.stderr
    assert "cpu-0 is Starting" in done.stderr


def test_a_second_up_of_the_same_pool_is_refused(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document())
    with tidegate.running("up", str(manifest)):
        tidegate.wait_for("Ready")
        for flags in ((), ("--detach",)):
            second = tidegate.run("up", str(manifest), *flags)
            assert second.returncode == 2
            assert second.stderr.count("pool local is up already; stop it with `tidegate down local`") == 1
        assert tidegate.state()["phase"] == "Ready"


@pytest.mark.parametrize("flags", [(), ("--detach",)])
def test_a_port_in_use_is_told_before_any_worker_starts(tidegate: TidegateCommand, flags: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = tidegate.run("up", str(tidegate.manifest(pool_document(port=port))), *flags)
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is in use by another program" in done.stderr
    assert "Starting" not in done.stdout


def test_a_second_ctrl_c_does_not_wait_for_a_stubborn_worker(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("stubborn"))
    with tidegate.running("up", str(manifest)) as process:
        tidegate.wait_for("Ready")
        everyone = family([process.pid])
        interrupt(process)
        eventually(lambda: tidegate.state()["processes"][0]["phase"], lambda phase: phase == "Stopping")
        interrupt(process)
        process.communicate(timeout=10)
    assert process.returncode == 0
    all_gone(everyone)


def test_a_stubborn_worker_is_killed_after_its_drain_time(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("stubborn", router={"timeouts": {"drainSeconds": 0.1}}))
    with tidegate.running("up", str(manifest)) as process:
        tidegate.wait_for("Ready")
        everyone = family([process.pid])
        process.terminate()
        process.communicate(timeout=20)
    all_gone(everyone)


def test_the_output_may_be_cut_off_without_hurting_the_pool(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document())
    with tidegate.running("up", str(manifest)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        state = tidegate.wait_for("Ready")
        assert not gone(process_ids(state)["router"])
        process.terminate()
        process.wait(timeout=30)
    assert process.returncode == 0


def test_detach_status_logs_down(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document("engine", name="chat", replicas=2))
    up = tidegate.run("up", str(manifest), "--detach")
    assert up.returncode == 0, up.stderr
    assert "pool chat is Ready at" in up.stdout
    [pool] = tidegate.status()
    try:
        assert [process["phase"] for process in pool["processes"]] == ["Ready"] * 3
        everyone = family([pool["supervisorPid"]])
        assert "cpu-1" in tidegate.run("status").stdout
        assert "serving on" in tidegate.run("logs", "router").stdout
        assert "engine" in tidegate.run("logs", "chat/cpu-1", "--tail", "5").stdout
        assert "pool chat Ready" in tidegate.run("logs", "supervisor").stdout
        with tidegate.running("logs", "router", "--follow") as following:
            down = tidegate.run("down")
            assert (down.returncode, down.stdout) == (0, "pool chat is down\n"), down.stderr
            following.communicate(timeout=10)
            assert following.returncode == 0
        all_gone(everyone)
        nobody_listens(ports_of(pool))
        assert tidegate.run("logs", "chat/router").returncode == 0
        assert tidegate.run("up", str(manifest), "--detach").returncode == 0
    finally:
        tidegate.run("down")
    assert tidegate.status() == []


def test_a_detached_pool_that_fails_is_told_to_the_caller(tidegate: TidegateCommand) -> None:
    done = tidegate.run("up", str(tidegate.manifest(pool_document("user-error"))), "--detach")
    assert done.returncode == 2
    assert done.stderr.count("cpu-0 failed; the last lines of") == 1
    assert "no such model: nowhere.gguf" in done.stderr
    assert tidegate.status() == []


def test_down_kills_what_does_not_drain_in_time(tidegate: TidegateCommand) -> None:
    tidegate.run("up", str(tidegate.manifest(pool_document("stubborn"))), "--detach")
    [pool] = tidegate.status()
    everyone = family([pool["supervisorPid"]])
    down = tidegate.run("down", "--timeout-seconds", "0.5")
    assert down.returncode == 0
    assert "killed: it had not drained in 0.5 s" in down.stdout
    all_gone(everyone)


def test_an_up_after_a_killed_supervisor_takes_over(tidegate: TidegateCommand) -> None:
    manifest = tidegate.manifest(pool_document())
    tidegate.run("up", str(manifest), "--detach")
    [pool] = tidegate.status()
    os.kill(pool["supervisorPid"], signal.SIGKILL)
    all_gone([pool["supervisorPid"]])
    again = tidegate.run("up", str(manifest), "--detach")
    assert again.returncode == 0, again.stderr
    assert tidegate.run("down").returncode == 0


def test_folders_with_modules_named_as_ours_do_not_get_in_the_way(tidegate: TidegateCommand, tmp_path: Path) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit('the wrong module')\n")
    manifest = tidegate.manifest(pool_document())
    argv = tidegate.argv("up", str(manifest), "--detach")
    done = subprocess.run(argv, cwd=tmp_path, env=tidegate.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tidegate.run("down").returncode == 0
