"""What people see: the line to try, and the status table at any width."""

import json
import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tidegate_cli import status as view
from tidegate_cli.console import curl_line
from tidegate_operator.local.identity import ProcessIdentity
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.select import KnownPool
from tidegate_operator.local.state import PoolFolder, PoolState, ProcessState


def process(name: str, phase: Phase = Phase.READY, message: str = "") -> ProcessState:
    return ProcessState(
        name=name,
        role="router" if name == "router" else "worker",
        phase=phase,
        url="http://127.0.0.1:21000",
        identity=ProcessIdentity(pid=12_345, started_ticks=1),
        since_unix_seconds=0,
        message=message,
    )


def known_pool(*processes: ProcessState, phase: Phase = Phase.READY, stale: bool = False) -> KnownPool:
    state = PoolState(
        pool="chat",
        phase=phase,
        endpoint="http://127.0.0.1:8080",
        model="m",
        supervisor=ProcessIdentity(pid=1, started_ticks=1),
        processes=processes,
    )
    return KnownPool(PoolFolder(Path("/state"), "chat"), state, owned=True, stale=stale)


def shown(pool: KnownPool, width: int) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    view.show([pool], console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("model", ["smollm2", "โมเดล/ü", "it's", 'a"b', "$(id)", "\u202eevil", "a\nb"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_the_line_to_try_asks_for_the_very_model_wherever_it_is_pasted(model: str, encoding: str) -> None:
    line = curl_line("http://127.0.0.1:1", model, encoding)
    line.encode(encoding)
    assert line.isprintable()
    assert json.loads(shlex.split(line)[-1])["model"] == model


def test_the_line_to_try_is_readable_where_the_terminal_has_the_characters() -> None:
    assert "โมเดล" in curl_line("http://127.0.0.1:1", "โมเดล", "utf-8")
    assert "\\u0e42" in curl_line("http://127.0.0.1:1", "โมเดล", "ascii")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_a_narrow_status_has_fewer_columns_and_no_shortened_ones(width: int) -> None:
    text = shown(known_pool(process("cpu-0"), process("router", Phase.UNREADY, "GET /ready fails")), width)
    assert "cpu-0    Ready" in text
    assert "router   Unready" in text
    assert text.count("http://127.0.0.1:21000") == 2
    assert "GET /ready fails" in text
    assert "…" not in text
    assert ("12345" in text) == (width >= 80)


def test_a_degraded_pool_says_how_many_workers_serve() -> None:
    pool = known_pool(process("cpu-0"), process("cpu-1", Phase.STARTING), process("router"), phase=Phase.DEGRADED)
    assert shown(pool, 80).startswith("pool chat  Degraded (1/2 workers Ready)  http://127.0.0.1:8080/v1\n")


def test_a_state_out_of_date_is_said_to_be_so() -> None:
    pool = known_pool(process("cpu-0"), stale=True)
    assert "out of date: the supervisor cannot write the state folder /state/chat" in shown(pool, 80)
    assert json.loads(view.as_json([pool]))[0]["stale"] is True
