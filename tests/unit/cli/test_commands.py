"""The command line without running a pool: bad input is one message and exit code 2, never a traceback."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from local_pool import pool_document
from tidegate_cli import app as commands
from tidegate_cli.__main__ import main

Tidegate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tidegate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tidegate:
    """Run the program in this process: (exit code, standard output, standard error)."""
    monkeypatch.setenv("TIDEGATE_STATE_HOME", str(tmp_path / "state"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), out, err

    return run


def write(path: Path, document: object) -> Path:
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "pool.yaml: "),
        ("a: [", "pool.yaml: "),
        ("apiVersion: v1\nkind: Pod\n", "apiVersion"),
        (yaml.safe_dump(pool_document(worker={"replicas": "two"})), "spec.workers[0].replicas: expected an integer"),
        (yaml.safe_dump(pool_document(worker={"replica": 2})), "replicas"),
        ("\x00", "pool.yaml: "),
    ],
)
@pytest.mark.parametrize("command", ["up", "demo", "validate"])
def test_a_bad_manifest_is_told_by_path_and_ends_with_2(
    tidegate: Tidegate, tmp_path: Path, command: str, text: str, message: str
) -> None:
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(text, encoding="utf-8")
    code, out, err = tidegate(command, str(manifest))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {manifest}: ")
    assert message in err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"\xff\xfe", "not UTF-8 text"), (b" " * (5 << 20), "larger than 4 MiB")],
)
def test_a_file_that_is_no_manifest_is_told(
    tidegate: Tidegate, tmp_path: Path, content: bytes | None, message: str
) -> None:
    manifest = tmp_path / "pool.yaml"
    if content is not None:
        manifest.write_bytes(content)
    code, _, err = tidegate("validate", str(manifest))
    assert code == 2
    assert message in err


def test_a_pool_without_workers_is_valid_but_not_for_up(tidegate: Tidegate, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pool.yaml", pool_document(name="chat", replicas=0))
    code, out, _ = tidegate("validate", str(manifest))
    assert code == 0
    assert "valid; pool chat: not for `tidegate up`: spec.workers: no worker has replicas" in out
    code, _, err = tidegate("up", str(manifest))
    assert code == 2
    assert err.startswith(f"error: {manifest}: spec.workers: no worker has replicas")


@pytest.mark.parametrize("command", ["up", "demo", "validate"])
def test_worker_flags_that_cannot_work_are_told_before_anything_starts(
    tidegate: Tidegate, tmp_path: Path, command: str
) -> None:
    document = pool_document(worker={"args": ["--port", "18099", "--bogus"]})
    manifest = write(tmp_path / "pool.yaml", document)
    code, out, err = tidegate(command, str(manifest))
    assert (code, out) == (2, "")
    assert f'{manifest}: spec.workers[0].args[0]: "--port" is set by' in err
    assert f'{manifest}: spec.workers[0].args[2]: "--bogus" is not a flag' in err


def test_far_too_many_workers_are_valid_but_not_for_this_machine(tidegate: Tidegate, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pool.yaml", pool_document(replicas=10_000, router={"replicas": 2}))
    code, out, _ = tidegate("validate", str(manifest))
    assert code == 0
    assert "not for `tidegate up`: spec.workers: 10000 workers are too many for this machine" in out
    assert "note: spec.router.replicas is 2" in out
    assert len(out) < 600
    code, _, err = tidegate("up", str(manifest))
    assert code == 2
    assert err.startswith(f"error: {manifest}: spec.workers: 10000 workers are too many")


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere/a.log", "there is no folder"), ("", "is a folder; name a file in it")]
)
def test_an_access_log_that_cannot_be_written_names_its_field(
    tidegate: Tidegate, tmp_path: Path, name: str, message: str
) -> None:
    document = pool_document(router={"accessLog": {"path": f"{tmp_path}/{name}"}})
    code, _, err = tidegate("up", str(write(tmp_path / "pool.yaml", document)))
    assert code == 2
    assert err.startswith("error: spec.router.accessLog.path: ")
    assert message in err


def test_a_folder_is_no_manifest(tidegate: Tidegate, tmp_path: Path) -> None:
    code, _, err = tidegate("up", str(tmp_path))
    assert code == 2
    assert "cannot be read" in err


def test_a_valid_manifest_is_said_to_be_so(tidegate: Tidegate, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pool.yaml", pool_document(name="chat", replicas=2, port=8123))
    code, out, err = tidegate("validate", str(manifest))
    assert (code, err) == (0, "")
    assert out == f"{manifest}: valid; pool chat: workers cpu-0, cpu-1, router on 127.0.0.1, port 8123\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("down",), "no pool is running"),
        (("down", "chat"), "no pool chat is running"),
        (("status", "chat"), "no pool chat was ever up here"),
        (("logs", "router"), "no pool was ever up here"),
        (("logs", "chat/router"), "no pool chat is known here"),
        (("up",), "Missing argument"),
        (("nonsense",), "No such command"),
        (("up", "--nonsense", "x"), "No such option"),
        (("up", "x", "--timeout-seconds", "soon"), "Invalid value"),
    ],
)
def test_what_does_not_exist_is_told_and_ends_with_2(
    tidegate: Tidegate, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = tidegate(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_status_without_pools(tidegate: Tidegate) -> None:
    assert tidegate("status") == (0, "no pool is running\n", "")
    code, out, _ = tidegate("status", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_a_state_folder_that_cannot_be_written_is_told(
    tidegate: Tidegate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIDEGATE_STATE_HOME", str(tmp_path / "file"))
    manifest = write(tmp_path / "pool.yaml", pool_document())
    code, _, err = tidegate("up", str(manifest))
    assert code == 2
    assert "cannot write the state folder" in err


def test_a_bug_is_one_message_and_code_1(tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(commands, "_state_home", broken)
    code, out, err = tidegate("status")
    assert (code, out) == (1, "")
    assert "this is a bug in tidegate: ZeroDivisionError: by zero" in err


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_printed(tidegate: Tidegate, word: str) -> None:
    code, out, _ = tidegate(word)
    assert code == 0
    assert out.startswith("tidegate 0.")


def test_help_needs_none_of_the_heavy_parts() -> None:
    script = (
        "import sys\n"
        "from tidegate_cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'grpc', 'yaml', 'msgspec', 'asyncio', 'rich.console', 'tidegate_operator'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == "set()\n"
    assert "validate" in done.stdout
    assert time.perf_counter() - begin < 10
