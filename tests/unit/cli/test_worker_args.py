"""Worker flags in a manifest: what the plan sets, what no worker knows and what it cannot read is refused by path."""

import pytest
from local_pool import make_pool, pool_document
from tidegate_cli.worker_args import worker_args_errors
from tidegate_crds.decoding import decode_pool
from tidegate_operator.plan.worker_args import PLANNED_FLAGS

PATH = "spec.workers[0].args"


@pytest.mark.parametrize(
    "arguments", [[], ["--block-size", "32"], ["--max-running=8", "--device", "cpu"], ["--max-body-bytes", "4096"]]
)
def test_flags_that_are_the_workers_alone_pass(arguments: list[str]) -> None:
    assert worker_args_errors(make_pool(worker={"args": arguments})) == []


@pytest.mark.parametrize("flag", sorted(PLANNED_FLAGS))
def test_flags_that_the_plan_sets_are_refused_in_either_form(flag: str) -> None:
    [apart] = worker_args_errors(make_pool(worker={"args": ["--block-size", "8", flag, "1"]}))
    [joined] = worker_args_errors(make_pool(worker={"args": [f"{flag}=1"]}))
    assert apart.startswith(f'{PATH}[2]: "{flag}" is set by ')
    assert joined.startswith(f'{PATH}[0]: "{flag}" is set by ')


def test_the_field_to_use_instead_is_that_of_the_same_set() -> None:
    [error] = worker_args_errors(make_pool(worker={"args": ["--kv-blocks", "9"]}))
    assert error.endswith("spec.workers[0].kvCache.blocks; use that field")


def test_flags_for_all_workers_are_held_to_the_same() -> None:
    document = pool_document()
    document["spec"]["engine"] = {"args": ["--threads", "2"]}
    [error] = worker_args_errors(decode_pool(document))
    assert error.startswith('spec.engine.args[0]: "--threads" is set by the plan from spec.workers[].threads')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], '[0]: "--bogus" is not a flag of tidegate-worker; `tidegate-worker --help` lists them'),
        (["--block-sise", "8"], '[0]: "--block-sise" is not a flag of tidegate-worker; did you mean "--block-size"?'),
        (["--max-run", "8"], '[0]: "--max-run" is not a flag of tidegate-worker; `tidegate-worker --help` lists them'),
        (["--help"], '[0]: "--help" is not a flag of tidegate-worker; `tidegate-worker --help` lists them'),
        (["--block-size 8"], '[0]: "--block-size 8": write the flag and its value as two items: "--block-size", "8"'),
        (["--block-size", "x"], ": --block-size: expected an integer, got 'x'"),
        (["--block-size", "-1"], ": --block-size: expected 1 to 1024, got -1"),
        (["--block-size"], ": --block-size: expected one argument"),
        (["8"], ': "8" belongs to no flag'),
    ],
)
def test_what_a_worker_would_not_take_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker_args_errors(make_pool(worker={"args": arguments})) == [PATH + message]
    assert capsys.readouterr() == ("", "")


def test_another_worker_may_have_flags_of_its_own_but_not_the_plans() -> None:
    pool = make_pool(worker={"args": ["--decode-step-seconds", "0.2", "--port", "1"]})
    [error] = worker_args_errors(pool, known_worker=False)
    assert '"--port"' in error
