"""Pure: which flags a manifest may hand to workers, as far as the plan sets flags itself.

A flag that the plan sets must not be set again behind its back: the router would look for a worker where it is not, or
know it by a name that it does not serve.
"""

from collections.abc import Iterator

from tidegate_crds.errors import quoted
from tidegate_crds.inference_pool import InferencePool

_PLACED = "set by whatever starts the workers; leave it out"
_FIELDS = {
    "--model": "spec.model.uri",
    "--served-name": "spec.model.servedNames",
    "--dtype": "spec.model.dtype",
    "--context-tokens": "spec.model.contextTokens",
    "--drain-seconds": "spec.router.timeouts.drainSeconds",
    "--threads": "spec.workers[].threads",
    "--kv-blocks": "spec.workers[].kvCache.blocks",
    "--kv-memory-bytes": "spec.workers[].kvCache.memoryBytes",
}
PLANNED_FLAGS = {
    **{flag: f"set by the plan from {field}; use that field" for flag, field in _FIELDS.items()},
    **dict.fromkeys(("--host", "--port", "--telemetry-port"), _PLACED),
}
"""Flags of `tidegate-worker` that the plan sets, with what to do instead of writing them."""


def argument_lists(pool: InferencePool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every list of worker flags in the manifest, with its path."""
    yield "spec.engine.args", pool.spec.engine.args
    for index, workers in enumerate(pool.spec.workers):
        yield f"spec.workers[{index}].args", workers.args


def planned_flag_errors(pool: InferencePool) -> list[str]:
    """One message, beginning with its path, for each flag in the manifest that the plan sets itself."""
    errors = []
    for path, arguments in argument_lists(pool):
        for index, argument in enumerate(arguments):
            flag, _, _ = argument.partition("=")
            if flag in PLANNED_FLAGS:
                advice = PLANNED_FLAGS[flag].replace("spec.workers[].", _set_of(path))
                errors.append(f"{path}[{index}]: {quoted(flag)} is {advice}")
    return errors


def _set_of(path: str) -> str:
    return f"{path.removesuffix('args')}" if path.startswith("spec.workers") else "spec.workers[]."
