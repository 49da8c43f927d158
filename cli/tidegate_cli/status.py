"""`tidegate status`: pools as a table for people, as JSON for scripts."""

import time

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.select import KnownPool
from tidegate_operator.local.state import ProcessState

from tidegate_cli.console import PHASE_STYLES, say

STALE_REASON = "the supervisor cannot write the state folder {folder} (disk full, or not writable)"


def phase_of(pool: KnownPool) -> str:
    """The pool's phase; `Dead` when its supervisor ended without a word."""
    return "Dead" if pool.died else pool.state.phase


def as_json(pools: list[KnownPool]) -> str:
    """One JSON list, an object per pool."""
    return msgspec.json.encode([_plain(pool) for pool in pools]).decode()


def _plain(pool: KnownPool) -> dict[str, object]:
    state = pool.state
    return {
        "pool": pool.folder.pool,
        "phase": phase_of(pool),
        "endpoint": state.endpoint,
        "model": state.model,
        "supervisorPid": state.supervisor.pid if pool.owned else None,
        "message": state.message,
        "stale": pool.stale,
        "processes": [
            {
                "name": process.name,
                "role": process.role,
                "phase": process.phase,
                "pid": process.identity.pid if pool.owned and process.identity else None,
                "url": process.url,
                "restarts": process.restarts,
                "sinceUnixSeconds": process.since_unix_seconds,
                "message": process.message,
            }
            for process in state.processes
        ],
    }


def show(pools: list[KnownPool], console: Console) -> None:
    """A heading and a table per pool."""
    if not pools:
        say(console, "no pool is running")
    for pool in pools:
        phase = phase_of(pool)
        style = "bold red" if pool.died else PHASE_STYLES[pool.state.phase]
        heading = Text(f"pool {pool.folder.pool}  ")
        heading.append(phase, style)
        if pool.state.phase is Phase.DEGRADED and not pool.died:
            heading.append(f" ({_ready_workers(pool)} workers Ready)")
        heading.append(f"  {pool.state.endpoint}/v1")
        console.print(heading, soft_wrap=True, highlight=False)
        if pool.died:
            say(console, f"  its supervisor was killed; `tidegate down {pool.folder.pool}` clears what is left")
            continue
        if pool.stale:
            say(console, f"  out of date: {STALE_REASON.format(folder=pool.folder.path)}", "bold red")
        for line in _table(pool, console.width):
            console.print(line, soft_wrap=True, highlight=False)


def _ready_workers(pool: KnownPool) -> str:
    phases = [process.phase for process in pool.state.processes if process.role == "worker"]
    return f"{phases.count(Phase.READY)}/{len(phases)}"


_COLUMNS = ("PROCESS", "PHASE", "FOR", "RESTARTS", "PID", "URL")
_DROPPED_FIRST = ("PID", "RESTARTS", "FOR")
_GAP = "  "


def _table(pool: KnownPool, width: int) -> list[Text]:
    """Lines of a table; where it would be wider than `width` it has fewer columns, never shortened ones."""
    rows = [dict(zip(_COLUMNS, _cells(process), strict=True)) for process in pool.state.processes]
    widths = {name: max(len(name), *(cell_len(row[name]) for row in rows)) for name in _COLUMNS} if rows else {}
    shown = list(widths)
    for name in _DROPPED_FIRST:
        if name in shown and _width(widths, shown) > width:
            shown.remove(name)
    lines = [Text(_GAP.join(name.ljust(widths[name]) for name in shown), "bold")]
    for process, row in zip(pool.state.processes, rows, strict=True):
        line = Text()
        for name in shown:
            cell = row[name] + " " * (widths[name] - cell_len(row[name]) + len(_GAP))
            line.append(cell, PHASE_STYLES[process.phase] if name == "PHASE" else "")
        if not process.message:
            lines.append(line)
        elif _width(widths, shown) + len(_GAP) + cell_len(process.message) <= width:
            lines.append(line.append(process.message))
        else:
            lines += [line, Text(f"{_GAP}{process.message}")]
    for line in lines:
        line.rstrip()
    return lines


def _cells(process: ProcessState) -> tuple[str, ...]:
    return (
        process.name,
        process.phase,
        duration(time.time() - process.since_unix_seconds),
        str(process.restarts),
        str(process.identity.pid) if process.identity else "-",
        process.url,
    )


def _width(widths: dict[str, int], shown: list[str]) -> int:
    return sum(widths[name] for name in shown) + len(_GAP) * (len(shown) - 1)


def duration(seconds: float) -> str:
    """A rough length of time for people: `7s`, `3m`, `5h`, `2d`."""
    whole = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
