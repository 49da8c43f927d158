"""Worker flags in a manifest, held to the worker's own parser before any process starts."""

import argparse
from collections.abc import Iterator

from tidegate_crds.errors import quoted
from tidegate_crds.inference_pool import InferencePool
from tidegate_crds.spelling import suggest
from tidegate_operator.plan.worker_args import PLANNED_FLAGS, argument_lists, planned_flag_errors


def worker_args_errors(pool: InferencePool, *, known_worker: bool = True) -> list[str]:
    """One message, beginning with its path, for each flag that the plan sets itself, or that no worker has.

    Values are checked too, each list by itself. `known_worker` is False for a worker other than `tidegate-worker`,
    whose flags cannot be known; so it is where that package is not installed.
    """
    errors = planned_flag_errors(pool)
    lists = [(path, arguments) for path, arguments in argument_lists(pool) if arguments]
    if not lists or not known_worker:
        return errors
    try:
        from tidegate_worker.flags import build_parser
    except ModuleNotFoundError:
        return errors
    for path, arguments in lists:
        errors += _errors(path, arguments, build_parser())
    return errors


def _errors(path: str, arguments: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[str]:
    known = {flag for action in parser._actions for flag in action.option_strings}  # noqa: SLF001 - no public list
    known -= {"-h", "--help"}
    unknown = list(_unknown_flags(path, arguments, known))
    yield from unknown
    planned = any(argument.partition("=")[0] in PLANNED_FLAGS for argument in arguments)
    if unknown or planned:
        return
    parser.exit_on_error = False
    try:
        _, left = parser.parse_known_args(["--model", "model", *arguments])
    except argparse.ArgumentError as error:
        yield f"{path}: {error.argument_name}: {error.message}"
        return
    if left:
        yield f"{path}: {quoted(left[0])} belongs to no flag"


def _unknown_flags(path: str, arguments: tuple[str, ...], known: set[str]) -> Iterator[str]:
    for index, argument in enumerate(arguments):
        if not argument.startswith("-") or _is_number(argument):
            continue
        flag, _, _ = argument.partition("=")
        if flag in known:
            continue
        here = f"{path}[{index}]: {quoted(argument)}"
        first, space, value = flag.partition(" ")
        if space and first in known:
            yield f"{here}: write the flag and its value as two items: {quoted(first)}, {quoted(value.strip())}"
            continue
        meant = suggest(flag, known)
        hint = f"; did you mean {quoted(meant)}?" if meant else "; `tidegate-worker --help` lists them"
        yield f"{here} is not a flag of tidegate-worker{hint}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
