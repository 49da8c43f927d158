"""The commands of `tidegate`. Each imports what it needs when it runs, so that `--help` is quick."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from tidegate_operator.local.launch import LaunchOptions

WORKER_MODULE = "tidegate_worker"
ROUTER_MODULE = "tidegate_router"

app = typer.Typer(
    name="tidegate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Typer's rich help imports a Markdown parser: three times the start-up of everything else.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve one model to many: workers behind a router that knows what they have cached."""


Manifest = Annotated[Path, typer.Argument(metavar="POOL.yaml", help="InferencePool manifest.")]
ReadyTimeout = Annotated[
    float | None, typer.Option("--timeout-seconds", min=0.1, help="Give up when not Ready after this time.")
]
WorkerModule = Annotated[str, typer.Option("--worker-module", hidden=True, help="Python module run as a worker.")]
RouterModule = Annotated[str, typer.Option("--router-module", hidden=True, help="Python module run as the router.")]
OptionalPool = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The pool; needed when several run.")]


@app.command()
def up(
    manifest: Manifest,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once Ready; the pool runs on.")] = False,
    timeout_seconds: ReadyTimeout = None,
    worker_module: WorkerModule = WORKER_MODULE,
    router_module: RouterModule = ROUTER_MODULE,
) -> None:
    """Start a pool's workers and router on this machine."""
    from tidegate_operator.plan.local import local_notes

    from tidegate_cli.console import say
    from tidegate_cli.manifest import read_local_pool
    from tidegate_cli.up import run_detached, run_foreground

    pool = read_local_pool(manifest, worker_module)
    options = _launch_options(timeout_seconds, worker_module, router_module)
    out, err = _console(), _console(stderr=True)
    for note in local_notes(pool):
        say(err, f"note: {note}", "yellow")
    if detach:
        raise typer.Exit(run_detached(manifest, pool, options, out, err))
    raise typer.Exit(run_foreground(pool, options, out, err))


@app.command()
def down(
    name: OptionalPool = None,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout-seconds", min=0, help="Drain this long, then kill.")
    ] = 90.0,
) -> None:
    """Drain and stop a running pool."""
    from tidegate_operator.local.errors import StateError
    from tidegate_operator.local.launch import end_survivors
    from tidegate_operator.local.select import running_pool, stop_pool

    from tidegate_cli.console import say

    pool = running_pool(_state_home(), name)
    drained = not pool.owned or stop_pool(pool, timeout_seconds)
    left, unwritten = 0, ""
    try:
        with pool.folder.acquire():
            left = end_survivors(pool.folder)
    except StateError as error:
        unwritten = str(error)
    how = "" if drained else f" (killed: it had not drained in {timeout_seconds:g} s)"
    if pool.died:
        how = f" (its supervisor was dead; ended {left or 'the'} processes that were left)"
    say(_console(), f"pool {pool.folder.pool} is down{how}")
    if unwritten:
        say(_console(stderr=True), f"note: {unwritten}; until then `tidegate status` is out of date", "yellow")


@app.command()
def status(
    name: OptionalPool = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list on standard output.")] = False,
) -> None:
    """Show running pools and their processes."""
    from tidegate_operator.local.errors import UnknownPoolError
    from tidegate_operator.local.select import known_pools

    from tidegate_cli import status as view

    pools = known_pools(_state_home())
    if name is None:
        pools = [pool for pool in pools if pool.owned or pool.died]
    else:
        pools = [pool for pool in pools if pool.folder.pool == name]
        if not pools:
            raise UnknownPoolError(f"no pool {name} was ever up here")
    if as_json:
        typer.echo(view.as_json(pools))
    else:
        view.show(pools, _console())


@app.command()
def logs(
    target: Annotated[str, typer.Argument(metavar="NAME|POOL/NAME", help="A process: router, cpu-0, demo/cpu-0.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pool is down.")] = False,
    tail: Annotated[int, typer.Option("--tail", "-n", min=0, help="Lines from the end.")] = 100,
) -> None:
    """Show what a process wrote."""
    from tidegate_operator.local import logs as log_files
    from tidegate_operator.local.select import log_of

    pool, path = log_of(_state_home(), target)
    end = log_files.size(path)
    for line in log_files.last_lines(path, tail, end=end):
        typer.echo(line)
    if follow:
        for text in log_files.follow(path, end, more=pool.folder.owned):
            typer.echo(text, nl=False)


@app.command()
def demo(
    manifest: Manifest,
    once: Annotated[bool, typer.Option("--once", help="Run the conversations, then stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, last on standard output.")] = False,
    timeout_seconds: ReadyTimeout = 300.0,
    worker_module: WorkerModule = WORKER_MODULE,
    router_module: RouterModule = ROUTER_MODULE,
) -> None:
    """Start a pool and show what its caches are worth."""
    from dataclasses import replace

    from tidegate_cli.demo import run_demo
    from tidegate_cli.manifest import read_local_pool

    pool = read_local_pool(manifest, worker_module)
    options = replace(_launch_options(timeout_seconds, worker_module, router_module), other_port_if_taken=True)
    shown = _console(stderr=as_json)
    raise typer.Exit(run_demo(pool, options, shown, once=once, json_out=sys.stdout if as_json else None))


@app.command(
    "sim-worker",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def sim_worker(context: typer.Context) -> None:
    """Run a worker without a model (see sim-worker --help)."""
    from tidegate_worker.sim.main import main

    raise typer.Exit(main(list(context.args)))


@app.command()
def validate(manifest: Manifest) -> None:
    """Check a manifest and say what it would run here."""
    from tidegate_operator.plan.local import PlanError, local_notes, workers_summary

    from tidegate_cli.manifest import check_local, read_pool

    pool = read_pool(manifest)
    listen = pool.spec.router.listen
    port = f"port {listen.port}" if listen.port else "a free port"
    try:
        check_local(pool)
        here = f"workers {workers_summary(pool)}, router on {listen.host}, {port}"
    except PlanError as error:
        here = f"not for `tidegate up`: {error}"
    typer.echo(f"{manifest}: valid; pool {pool.metadata.name}: {here}")
    for note in local_notes(pool):
        typer.echo(f"{manifest}: note: {note}")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    typer.echo(f"tidegate {version_of('tidegate')}")


def _console(*, stderr: bool = False) -> "Console":
    from tidegate_cli.console import SteadyConsole

    return SteadyConsole(stderr=stderr)


def _state_home() -> Path:
    from tidegate_operator.local.state import state_home

    return state_home(os.environ)


def _launch_options(timeout_seconds: float | None, worker_module: str, router_module: str) -> "LaunchOptions":
    from tidegate_operator.local.launch import LaunchOptions
    from tidegate_operator.local.supervisor import SupervisorSettings
    from tidegate_operator.plan.local import Programs

    return LaunchOptions(
        home=_state_home(),
        programs=Programs(sys.executable, worker_module, router_module),
        settings=SupervisorSettings(ready_timeout_seconds=timeout_seconds),
    )
