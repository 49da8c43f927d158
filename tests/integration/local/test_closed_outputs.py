"""Commands whose standard output is full, or has no reader any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(arguments: list[str], home: Path, stdout: int | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "tidegate_cli", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "TIDEGATE_STATE_HOME": str(home)},
    )


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["version"], ["--help"]])
def test_a_full_output_is_one_message_and_code_1(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(arguments, tmp_path, full.fileno())
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["version"], ["--help"]])
def test_an_output_without_a_reader_ends_quietly(tmp_path: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(arguments, tmp_path, writer)
    finally:
        os.close(writer)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


def test_a_closed_output_is_nobodys_file(tmp_path: Path) -> None:
    script = f"exec {sys.executable} -P -m tidegate_cli status >&-"
    environment = {**os.environ, "TIDEGATE_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", script], stderr=subprocess.PIPE, text=True, check=False, timeout=30, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
