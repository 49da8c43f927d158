"""The worker's command line."""

import argparse
from collections.abc import Callable
from pathlib import PurePosixPath

from tidegate_worker.engine.settings import MIN_CONTEXT_TOKENS, EngineSettings, SchedulerSettings
from tidegate_worker.server.outside import ServerSettings

DEFAULT_PORT = 8000
DEFAULT_TELEMETRY_PORT = 0
DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
DEFAULT_DRAIN_SECONDS = 30.0
MAX_THREADS = 1024
"""As the API's `threads`: far above any machine's cores, far below what takes a machine down."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of `tidegate-worker`."""
    parser = argparse.ArgumentParser(
        prog="tidegate-worker",
        description="Serve one model: OpenAI API over HTTP, and a telemetry stream for routers over gRPC.",
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="URI",
        help="a GGUF file, a Hugging Face directory, hf://org/name[@revision] or package://distribution/file",
    )
    add_server_flags(parser)
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and KV; auto: bfloat16 on an accelerator, float32 on a CPU",
    )
    engine.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda where there is one, else cpu",
    )
    engine.add_argument(
        "--threads",
        type=at_least(1, MAX_THREADS),
        help=f"compute threads, at most {MAX_THREADS} (default: as many as cores may be used)",
    )
    kv_cache = add_engine_flags(engine)
    kv_cache.add_argument("--kv-memory-bytes", type=at_least(1), help="memory for the KV cache; not with --kv-blocks")
    return parser


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """What the real and the simulated worker share outside."""
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    server.add_argument("--port", type=at_least(0, 65535), default=DEFAULT_PORT, help="HTTP; 0: a free one")
    server.add_argument(
        "--telemetry-port",
        type=at_least(0, 65535),
        default=DEFAULT_TELEMETRY_PORT,
        help="telemetry gRPC; 0: a free one (default: %(default)s)",
    )
    server.add_argument(
        "--served-name",
        action="append",
        type=model_name,
        metavar="NAME",
        help="a name that requests may use for the model; repeatable, the first one labels metrics",
    )
    server.add_argument(
        "--max-body-bytes", type=at_least(1), default=DEFAULT_MAX_BODY_BYTES, help="larger ones get 413"
    )
    server.add_argument(
        "--drain-seconds",
        type=seconds,
        default=DEFAULT_DRAIN_SECONDS,
        help="after SIGTERM, how long open requests may go on (default: %(default)s)",
    )


def add_engine_flags(engine: "argparse._ArgumentGroup") -> "argparse._MutuallyExclusiveGroup":
    """What the real and the simulated engine share; the group of flags of which only one may size the KV cache."""
    scheduler = SchedulerSettings()
    engine.add_argument(
        "--context-tokens",
        type=at_least(MIN_CONTEXT_TOKENS),
        help=f"most tokens of prompt and answer together, at least {MIN_CONTEXT_TOKENS} (default: the model's)",
    )
    kv_cache = engine.add_mutually_exclusive_group()
    kv_cache.add_argument("--kv-blocks", type=at_least(1), help="size of the KV cache in blocks")
    engine.add_argument(
        "--block-size", type=at_least(1, 1024), default=16, help="tokens in a block (default: %(default)s)"
    )
    engine.add_argument(
        "--max-batched-tokens",
        type=at_least(1),
        default=scheduler.max_batched_tokens,
        help="tokens computed in one step (default: %(default)s)",
    )
    engine.add_argument(
        "--max-running",
        type=at_least(1),
        default=scheduler.max_running,
        help="sequences that hold blocks at once (default: %(default)s)",
    )
    return kv_cache


def server_settings(options: argparse.Namespace, default_name: str) -> ServerSettings:
    """The outside of the worker that these options ask for."""
    return ServerSettings(
        host=options.host,
        port=options.port,
        telemetry_port=options.telemetry_port,
        served_names=tuple(dict.fromkeys(options.served_name or [default_name])),
        max_body_bytes=options.max_body_bytes,
        drain_seconds=options.drain_seconds,
    )


def scheduler_settings(parser: argparse.ArgumentParser, options: argparse.Namespace) -> SchedulerSettings:
    """The scheduler's numbers; ends the program (exit 2) when they contradict each other."""
    settings = SchedulerSettings(max_batched_tokens=options.max_batched_tokens, max_running=options.max_running)
    problem = settings.problem()
    if problem is not None:
        parser.error(problem)
    return settings


def engine_settings(options: argparse.Namespace, scheduler: SchedulerSettings) -> EngineSettings:
    """The engine of a real model that these options ask for."""
    return EngineSettings(
        model_uri=options.model,
        dtype=options.dtype,
        device=options.device,
        context_tokens=options.context_tokens,
        kv_blocks=options.kv_blocks,
        kv_memory_bytes=options.kv_memory_bytes,
        threads=options.threads,
        block_size=options.block_size,
        scheduler=scheduler,
    )


def default_served_name(uri: str) -> str:
    """The name of a model whose operator gave none: org/name from the Hub, else the file's or directory's name."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "hf":
        return rest.partition("@")[0]
    path = PurePosixPath(rest if separator else uri)
    return path.stem if path.suffix == ".gguf" else path.name or "model"


def at_least(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """An argparse type: an integer within bounds."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if value < lowest or (highest is not None and value > highest):
            bounds = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"expected {bounds}, got {value}")
        return value

    return integer


def model_name(text: str) -> str:
    """An argparse type: a name for a model, not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a name, got an empty one")
    return text


def seconds(text: str) -> float:
    """An argparse type: seconds, at least 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected at least 0 seconds, got {text}")
    return value
