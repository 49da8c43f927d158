"""`tidegate status`: pools as a table for people, as JSON for scripts."""

import time

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.select import KnownPool

from tidegate_cli.console import PHASE_STYLES, say


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
        heading.append(f"  {pool.state.endpoint}/v1")
        console.print(heading, soft_wrap=True, highlight=False)
        if pool.died:
            say(console, f"  its supervisor was killed; `tidegate down {pool.folder.pool}` clears what is left")
            continue
        console.print(_table(pool))


def _table(pool: KnownPool) -> Table:
    table = Table(box=None, pad_edge=True)
    for column in ("PROCESS", "PHASE", "FOR", "RESTARTS", "PID", "URL", ""):
        table.add_column(column, no_wrap=column != "")
    for process in pool.state.processes:
        table.add_row(
            process.name,
            Text(process.phase, PHASE_STYLES[Phase(process.phase)]),
            duration(time.time() - process.since_unix_seconds),
            str(process.restarts),
            str(process.identity.pid) if process.identity else "-",
            process.url,
            Text(process.message),
        )
    return table


def duration(seconds: float) -> str:
    """A rough length of time for people: `7s`, `3m`, `5h`, `2d`."""
    whole = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
