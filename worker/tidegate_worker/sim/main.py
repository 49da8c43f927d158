"""`tidegate sim-worker`: the worker's server and engine around a runner without a model."""

import argparse
from collections.abc import Sequence

from tidegate_worker.engine.settings import EngineSettings, SimSettings
from tidegate_worker.flags import (
    add_engine_flags,
    add_server_flags,
    at_least,
    scheduler_settings,
    seconds,
    server_settings,
)
from tidegate_worker.server.lifecycle import ModelSource, run
from tidegate_worker.sim.time_model import TimeModel
from tidegate_worker.sim.tokenizer import ByteCodec

DEFAULT_SERVED_NAME = "sim"


def build_parser() -> argparse.ArgumentParser:
    """The parser of `tidegate sim-worker`."""
    parser = argparse.ArgumentParser(
        prog="tidegate sim-worker",
        description="A worker without a model: real API, block cache, scheduler and telemetry; made-up text.",
    )
    add_server_flags(parser)
    engine = parser.add_argument_group("engine")
    add_engine_flags(engine)
    engine.add_argument(
        "--prefill-tokens-per-second",
        type=at_least(0),
        default=0,
        help="speed of reading prompts; 0: instant (default: %(default)s)",
    )
    engine.add_argument(
        "--decode-step-seconds",
        type=seconds,
        default=0.0,
        help="duration of a step, which gives every running sequence one token; 0: instant (default: %(default)s)",
    )
    engine.add_argument(
        "--mean-output-tokens",
        type=at_least(0),
        default=0,
        help="average length of answers; 0: only max_tokens ends them (default: %(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code; see `tidegate_worker.server.lifecycle`."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    scheduler = scheduler_settings(parser, options)
    rate = options.prefill_tokens_per_second
    time_model = TimeModel(
        base_seconds=options.decode_step_seconds,
        prefill_token_seconds=1 / rate if rate else 0.0,
    )
    engine = EngineSettings(
        runner="sim",
        context_tokens=options.context_tokens,
        kv_blocks=options.kv_blocks,
        block_size=options.block_size,
        scheduler=scheduler,
        sim=SimSettings(time=time_model, mean_output_tokens=options.mean_output_tokens),
    )
    return run(server_settings(options, DEFAULT_SERVED_NAME), ModelSource(lambda: engine, ByteCodec))
