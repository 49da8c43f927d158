"""What people see of a pool: one line per change of phase, a progress bar on a terminal, the endpoint at the end."""

import json
import shlex
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text
from tidegate_operator.local.lifecycle import Phase
from tidegate_operator.local.state import PoolState, ProcessState

PHASE_STYLES = {
    Phase.PENDING: "dim",
    Phase.STARTING: "yellow",
    Phase.READY: "green",
    Phase.UNREADY: "yellow",
    Phase.DEGRADED: "yellow",
    Phase.RESTARTING: "magenta",
    Phase.FAILED: "bold red",
    Phase.STOPPING: "dim",
    Phase.STOPPED: "dim",
}


def say(console: Console, text: str, style: str = "") -> None:
    """One line as it is: no markup, no wrapping, so that it can be copied."""
    console.print(Text(text, style=style), soft_wrap=True, highlight=False)


def curl_line(endpoint: str, model: str, encoding: str = "utf-8") -> str:
    """A shell command that streams an answer, with the model's name as it reads where `encoding` has its characters."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "What is the tide?"}]}
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=not _shows(model, encoding))
    return f"curl -N {endpoint}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(text)}"


def _shows(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return text.isprintable()


class SteadyConsole(Console):
    """A console whose reader may leave (a closed terminal, `| head`, a full disk): the pool runs on, unseen."""

    def on_broken_pipe(self) -> None:
        """Be quiet from now on, where the base class would end the program."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, or be quiet from now on; what could not be written is told when the program ends."""
        try:
            super().print(*objects, **options)
        except OSError:
            self.quiet = True


class ConsoleObserver:
    """Shows a pool on a console; a context, whose end takes the progress bar away."""

    def __init__(self, console: Console, pool: str, processes: int) -> None:
        self._console = console
        self._pool = pool
        self._phases: dict[str, Phase] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total} ready"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(f"starting pool {pool}", total=processes)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def changed(self, process: ProcessState) -> None:
        """A process entered another phase."""
        self._phases[process.name] = process.phase
        line = Text(f"{process.name:<12} ")
        line.append(f"{process.phase:<10}", PHASE_STYLES[process.phase])
        if process.message:
            line.append(f" {process.message}")
        line.rstrip()
        self._console.print(line, soft_wrap=True, highlight=False)
        ready = sum(phase is Phase.READY for phase in self._phases.values())
        self._progress.update(self._task, completed=ready)

    def ready(self, pool: PoolState) -> None:
        """All processes are Ready."""
        self._progress.stop()
        say(self._console, f"pool {pool.pool} is Ready at {pool.endpoint}/v1", "bold green")
        say(self._console, "try it:", "dim")
        say(self._console, f"  {curl_line(pool.endpoint, pool.model, self._console.encoding)}")

    def notice(self, text: str) -> None:
        """Something that a person should know."""
        say(self._console, f"note: {text}", "yellow")

    def stopping(self) -> None:
        """The shutdown begins."""
        self._progress.stop()
        say(self._console, f"stopping pool {self._pool} (Ctrl-C again to end it at once)", "dim")
