"""Requests per second of the router on one core, next to vllm-router and sglang-router in the same run.

    python -m bench.router [--seconds 1.5] [--repeats 7] [--peers all|none]

Set-up: the routers on one core, of which one is asked at a time and the others idle; wrk and one nginx with four
instant backends on another. Every prompt starts with one of 64 system prompts (70% of its bytes) and ends in a tail of
its own; peers run their cache-aware policy with request logs off, ours its default policy with the access log off.
Machines change speed from second to second, so turns are short and interleaved (A B C A B C …), in another order each
time; medians are reported, and the ratio to the best peer turn by turn. `direct` is the same load on nginx itself.
Before it is measured, each router has a second of load in which every answer is looked at: status, length, and which
backend gave it.

`tidegate` is our router as images carry it, its hot path compiled (tools/native.py); `tidegate, pure Python` is the
same without a compiler.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.instant_backends import instant_backends
from bench.load import BACKENDS, LARGE, LONE, SMALL, Case, LoadResult, Wrk
from bench.peers import Router, compiled_hot_path, require_programs, sglang_router, tidegate, vllm_router
from bench.processes import (
    BenchError,
    PinnedProcess,
    await_http_ok,
    free_ports,
    interrupt_on_sigterm,
    two_cores,
)
from bench.report import Row, write_report

CASES = (SMALL, LARGE, LONE)
DIRECT = "direct"
OURS = "tidegate"
PURE = "tidegate, pure Python"
EVEN_ENOUGH = 0.5  # no backend of four may answer more than half of the requests of 64 conversations


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one case; `cpu_us` is the router's CPU time per request, 0 without a router."""

    load: LoadResult
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Bed:
    """What all measurements of a run share."""

    wrk: Wrk
    workers: list[str]
    router_core: int | None
    folder: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class Running:
    """A router that serves."""

    name: str
    url: str
    process: PinnedProcess


Samples = dict[tuple[str, str], list[Sample]]


def main() -> int:
    options = _options()
    interrupt_on_sigterm()
    try:
        samples = _run(options)
    except BenchError as error:
        print(f"bench-router: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench-router: interrupted; every process it started has ended", file=sys.stderr)
        return 130
    write_report("router", report_rows(samples))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one turn (default 1.5)")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved turns of each router and case (default 7)")
    parser.add_argument("--peers", choices=("all", "none"), default="all", help="which other routers to run")
    options = parser.parse_args()
    if options.seconds < 1 or options.repeats < 1:
        parser.error("--seconds and --repeats must be at least 1")
    return options


def _run(options: argparse.Namespace) -> Samples:
    require_programs()
    compiled = compiled_hot_path()
    routers = [tidegate(OURS, compiled)] + ([tidegate(PURE)] if compiled else [])
    routers += [vllm_router(), sglang_router()] if options.peers == "all" else []
    cores = two_cores()
    if cores is None:
        print("warning: fewer than two cores, nothing is pinned: figures compare badly with other machines")
    router_core, load_core = cores or (None, None)
    print(f"cores: routers {router_core}, wrk and nginx {load_core}; {options.repeats} turns of {options.seconds:g} s")
    samples: Samples = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name,
        instant_backends(BACKENDS, core=load_core, folder=Path(name)) as workers,
        ExitStack() as stack,
    ):
        bed = Bed(Wrk(core=load_core, folder=Path(name)), workers, router_core, Path(name), options.seconds)
        running = [_start(bed, router, stack) for router in routers]
        for repeat in range(options.repeats):
            started = time.monotonic()
            turn = running[repeat % len(running) :] + running[: repeat % len(running)]
            for case in CASES:
                samples[DIRECT, case.name].append(Sample(_load(bed, case, workers[0]), 0.0))
                for router in turn:
                    samples[router.name, case.name].append(_measure(bed, router, case))
            print(f"turn {repeat + 1} of {options.repeats} took {time.monotonic() - started:.0f} s", flush=True)
    return samples


def _start(bed: Bed, router: Router, stack: ExitStack) -> Running:
    """Start a router and warm it up with checked answers."""
    [port] = free_ports(1)
    command = router.command(port, bed.workers, bed.folder)
    log = bed.folder / f"router-{port}.log"
    process = stack.enter_context(
        PinnedProcess(command, core=bed.router_core, log=log, environment=router.environment),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await_http_ok(f"{url}/health", process)
        for case in CASES[:2]:
            warm = bed.wrk.run(case, url, seconds=1, check=True)
            print(f"  {router.name}: {case.name} answers by backend {list(warm.by_backend)}", flush=True)
            if router.name in (OURS, PURE):
                _require_even(warm)
    except BenchError as error:
        raise BenchError(f"{router.name}: {error}") from error
    return Running(router.name, url, process)


def _measure(bed: Bed, router: Running, case: Case) -> Sample:
    before = router.process.cpu_seconds()
    try:
        load = _load(bed, case, router.url)
    except BenchError as error:
        raise BenchError(f"{router.name}: {error}") from error
    return Sample(load, (router.process.cpu_seconds() - before) / load.requests * 1e6)


def _require_even(load: LoadResult) -> None:
    if 0 in load.by_backend or load.largest_share > EVEN_ENOUGH:
        raise BenchError(f"the load is uneven: {load.by_backend} answers by backend")


def _load(bed: Bed, case: Case, url: str) -> LoadResult:
    return bed.wrk.run(case, url, seconds=bed.seconds)


def report_rows(samples: Samples) -> list[Row]:
    """Ours beside every peer, case by case; the peer that did best carries `(best)` in its name."""
    peers = sorted({router for router, _ in samples} - {OURS, PURE, DIRECT})
    rows: list[Row] = []
    for case in (SMALL, LARGE):
        rate = _medians(samples, case, lambda sample: sample.load.requests_per_second)
        rows += _compared(f"{case.name} requests/s", "1/s", rate, peers, more_is_better=True)
        if PURE in rate:
            best = max(peers, key=lambda peer: rate[peer], default=None)
            rows.append(Row(f"{case.name} requests/s, pure Python", rate[PURE], "1/s", best, rate.get(best or "")))
        rows += _ratios_turn_by_turn(samples, case, peers)
        rows.append(Row(f"{case.name} requests/s without a router", rate[DIRECT], "1/s"))
        tail = _medians(samples, case, lambda sample: sample.load.p99_us / 1e3)
        rows += _compared(f"{case.name} p99", "ms", tail, peers, more_is_better=False)
        cpu = _medians(samples, case, lambda sample: sample.cpu_us)
        rows += _compared(f"{case.name} CPU per request", "us", cpu, peers, more_is_better=False)
    lone = _medians(samples, LONE, lambda sample: float(sample.load.p50_us))
    added = {router: p50 - lone[DIRECT] for router, p50 in lone.items()}
    rows += _compared("latency added p50, one connection", "us", added, peers, more_is_better=False)
    rows.append(Row("latency p50 without a router", lone[DIRECT], "us"))
    spread = [sample.load.requests_per_second for sample in samples[OURS, SMALL.name]]
    rows.append(Row(f"{SMALL.name} requests/s, lowest repeat", min(spread), "1/s"))
    rows.append(Row(f"{SMALL.name} requests/s, highest repeat", max(spread), "1/s"))
    return rows


def _ratios_turn_by_turn(samples: Samples, case: Case, peers: list[str]) -> list[Row]:
    """The median over turns of our rate over the best peer's in the same turn: what a drifting machine leaves alone."""
    if not peers:
        return []
    rows = []
    for ours in (OURS, PURE):
        turns = zip(samples.get((ours, case.name), ()), *(samples[peer, case.name] for peer in peers), strict=False)
        ratios = [
            mine.load.requests_per_second / max(other.load.requests_per_second for other in others)
            for mine, *others in turns
        ]
        if ratios:
            label = f"{case.name} requests/s over the best peer's, {ours}: median of {len(ratios)} turns"
            rows.append(Row(label, statistics.median(ratios), "ratio"))
    return rows


def _medians(samples: Samples, case: Case, figure: Callable[[Sample], float]) -> dict[str, float]:
    return {
        router: statistics.median(figure(sample) for sample in repeats)
        for (router, name), repeats in samples.items()
        if name == case.name
    }


def _compared(
    metric: str, unit: str, figures: dict[str, float], peers: list[str], *, more_is_better: bool
) -> list[Row]:
    if not peers:
        return [Row(metric, figures[OURS], unit)]
    leader = sorted(peers, key=lambda peer: figures[peer], reverse=more_is_better)[0]
    return [
        Row(metric, figures[OURS], unit, f"{peer} (best)" if peer == leader else peer, figures[peer]) for peer in peers
    ]


if __name__ == "__main__":
    sys.exit(main())
