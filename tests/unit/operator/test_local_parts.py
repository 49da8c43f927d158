"""Small parts of local pools: ports, quotas, logs, identities, the watchdog's list, the state folder."""

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate_operator.local import logs
from tidegate_operator.local.errors import AlreadyRunningError, PortInUseError, StateError, UnknownPoolError
from tidegate_operator.local.identity import ProcessIdentity, identify
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.machine import quota_cores
from tidegate_operator.local.ports import check_bindable, choose_ports
from tidegate_operator.local.select import known_pools, log_of, running_pool
from tidegate_operator.local.state import PoolFolder, PoolState, ProcessState, state_home
from tidegate_operator.local.watchdog import groups_left
from waiting import eventually

SELF = identify(os.getpid())


def write_state(folder: PoolFolder, phase: Phase = Phase.READY) -> None:
    assert SELF is not None
    router = ProcessState(name="router", role="router", phase=phase, url="http://127.0.0.1:1", since_unix_seconds=0)
    folder.write(
        PoolState(
            pool=folder.pool,
            phase=phase,
            endpoint="http://127.0.0.1:1",
            model="m",
            supervisor=SELF,
            processes=(router,),
        )
    )


def test_chosen_ports_are_free_different_and_not_the_kernels_to_give() -> None:
    ports = choose_ports(20, random.Random(1))
    assert len(set(ports)) == 20
    for port in ports:
        assert port < 32_768
        check_bindable("127.0.0.1", port)


def test_a_port_to_avoid_is_never_chosen() -> None:
    first = choose_ports(1, random.Random(5))
    assert choose_ports(1, random.Random(5), avoid=frozenset(first)) != first


def test_a_port_in_use_is_told_with_the_field_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"port {port} on 127\.0\.0\.1 is in use.*spec\.router\.listen\.port"):
            check_bindable("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(PortInUseError, match=r"cannot listen on 192\.0\.2\.1:80.*spec\.router\.listen"):
        check_bindable("192.0.2.1", 80)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("", None),
        ("1 0", None),
    ],
)
def test_cores_of_a_container_come_from_its_quota(text: str, cores: int | None) -> None:
    assert quota_cores(text) == cores


def test_last_lines_come_from_the_end_across_blocks(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"line {number} {'x' * 300}\n" for number in range(500)))
    assert [line.split()[1] for line in logs.last_lines(log, 100)] == [str(number) for number in range(400, 500)]
    assert len(logs.last_lines(log, 10_000)) == 500
    assert logs.last_lines(log, 0) == []
    assert logs.last_lines(tmp_path / "none.log", 5) == []


def test_last_lines_between_two_bytes_leave_the_rest_out(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\nthree\n")
    assert logs.last_lines(log, 9, begin=4) == ["two", "three"]
    assert logs.last_lines(log, 9, end=8) == ["one", "two"]


def test_a_long_log_is_shortened_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100 + b"\n")
        assert not logs.shorten(log, max_bytes=1_000)
        assert logs.shorten(log, max_bytes=100)
        writer.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    assert (tmp_path / "a.log.1").stat().st_size == 101


def test_following_a_log_sees_what_is_appended_and_survives_rotation(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old\n")

    def append() -> None:
        with log.open("a") as writer:
            writer.write("new é\n")

    def replace() -> None:
        logs.rotate(log)
        log.write_text("next\n")

    writes = iter([append, replace])

    def more() -> bool:
        write = next(writes, None)
        if write is not None:
            write()
        return write is not None

    assert "".join(logs.follow(log, logs.size(log), more=more, poll_seconds=0)) == "new é\nnext\n"


def test_groups_left_are_those_added_and_not_removed() -> None:
    assert groups_left(["+10\n", "+11\n", "-10\n", "+12\n", "nonsense\n", "+13"]) == {11, 12}


def test_an_identity_is_of_one_process_and_not_of_a_later_one_with_its_pid() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        identity = identify(process.pid)
        assert identity is not None
        assert identity.alive()
        recycled = ProcessIdentity(pid=process.pid, started_ticks=identity.started_ticks - 1)
        assert not recycled.alive()
        assert not recycled.signal(signal.SIGKILL)
        recycled.kill_group()
        assert process.poll() is None
        identity.kill_group()
        assert process.wait(10) == -signal.SIGKILL
    eventually(identity.alive, lambda alive: not alive)
    assert identify(process.pid) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TIDEGATE_STATE_HOME": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_STATE_HOME": "/b", "HOME": "/c"}, "/b/tidegate"),
        ({"TIDEGATE_STATE_HOME": "", "HOME": "/c"}, "/c/.local/state/tidegate"),
    ],
)
def test_state_lives_where_the_environment_says(environ: dict[str, str], expected: str) -> None:
    assert state_home(environ) == Path(expected)


def test_a_pool_has_one_owner_at_a_time(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    assert not folder.owned()
    with folder.acquire():
        assert folder.owned()
        with pytest.raises(AlreadyRunningError, match="pool chat is up already; stop it with `tidegate down chat`"):
            PoolFolder(tmp_path, "chat").acquire()
    assert not folder.owned()
    folder.acquire().close()


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot write the state folder .*set TIDEGATE_STATE_HOME"):
        PoolFolder(tmp_path / "file", "chat").acquire()


def test_state_is_read_back_and_a_foreign_one_is_none(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    assert folder.read() is None
    with folder.acquire():
        write_state(folder)
    state = folder.read()
    assert state is not None
    assert (state.pool, state.phase, state.processes[0].name) == ("chat", Phase.READY, "router")
    (tmp_path / "chat" / "state.json").write_text('{"pool": 3}')
    assert folder.read() is None


def test_a_state_that_cannot_be_written_is_told_and_the_old_one_stays(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    with folder.acquire():
        write_state(folder)
        assert [pool.stale for pool in known_pools(tmp_path)] == [False]
        in_the_way = tmp_path / "chat" / "state.draft"
        in_the_way.mkdir()
        with pytest.raises(StateError, match=rf"cannot write the state folder {tmp_path}/chat: Is a directory"):
            write_state(folder, Phase.STOPPING)
        folder.mark_stale()
        [pool] = known_pools(tmp_path)
        assert (pool.state.phase, pool.stale) == (Phase.READY, True)
        in_the_way.rmdir()
        write_state(folder, Phase.STOPPING)
        [pool] = known_pools(tmp_path)
        assert (pool.state.phase, pool.stale) == (Phase.STOPPING, False)


def test_a_full_disk_is_told_by_what_to_do_and_leaves_no_draft(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    with folder.acquire():
        (tmp_path / "chat" / "state.draft").symlink_to("/dev/full")
        with pytest.raises(StateError, match=r"No space left on device; make room, or set TIDEGATE_STATE_HOME"):
            write_state(folder)
        assert not (tmp_path / "chat" / "state.draft").is_symlink()


def test_an_ended_pool_without_room_for_its_state_has_none_rather_than_a_wrong_one(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    with folder.acquire():
        write_state(folder)
        state = folder.read()
        assert state is not None
        (tmp_path / "chat" / "state.draft").mkdir()
        folder.write_last(state)
    assert known_pools(tmp_path) == []


def test_a_state_without_its_owner_is_a_dead_supervisors(tmp_path: Path) -> None:
    folder = PoolFolder(tmp_path, "chat")
    with folder.acquire():
        write_state(folder)
        assert [pool.died for pool in known_pools(tmp_path)] == [False]
    assert [pool.died for pool in known_pools(tmp_path)] == [True]
    write_state(folder, Phase.STOPPED)
    assert [pool.died for pool in known_pools(tmp_path)] == [False]


def test_a_name_may_be_left_out_while_one_pool_runs(tmp_path: Path) -> None:
    with pytest.raises(UnknownPoolError, match="no pool is running"):
        running_pool(tmp_path, None)
    first, second = PoolFolder(tmp_path, "a"), PoolFolder(tmp_path, "b")
    with first.acquire():
        write_state(first)
        assert running_pool(tmp_path, None).folder.pool == "a"
        with second.acquire():
            write_state(second)
            with pytest.raises(UnknownPoolError, match="say which: a, b"):
                running_pool(tmp_path, None)
            assert running_pool(tmp_path, "b").folder.pool == "b"
            with pytest.raises(UnknownPoolError, match="no pool c is running; running: a, b"):
                running_pool(tmp_path, "c")


def test_logs_are_found_by_process_or_by_pool_and_process(tmp_path: Path) -> None:
    first, second = PoolFolder(tmp_path, "a"), PoolFolder(tmp_path, "b")
    with first.acquire(), second.acquire():
        write_state(first)
        write_state(second)
        assert log_of(tmp_path, "b/router")[1] == second.log("router")
        with pytest.raises(UnknownPoolError, match="say which: a/router, b/router"):
            log_of(tmp_path, "router")
        with pytest.raises(UnknownPoolError, match="pool a has no process cpu-9; it has router"):
            log_of(tmp_path, "a/cpu-9")
        with pytest.raises(UnknownPoolError, match="no pool z is known here"):
            log_of(tmp_path, "z/router")
    write_state(first, Phase.STOPPED)
    assert log_of(tmp_path, "a/router")[0].owned is False
