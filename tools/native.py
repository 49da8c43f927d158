"""Compiles the router's hot path: the same Python files through Cython, into a folder that goes before the sources.

    PYTHONPATH=$(python tools/native.py) tidegate-router --config router.yaml

Nothing is written for it and nothing differs in behaviour: `make test-native` holds the compiled modules to the
router's whole test suite. A folder is named by what went into it, so a stale one is never used. Needs a C compiler,
unlike everything else here; see docs/adr/0005-compiled-hot-path.md.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "router" / "tidegate_router"
HOT_FOLDERS = ("gateway", "scheduling", "state", "telemetry", "tickets", "upstream")


class NoCompilerError(Exception):
    """This machine cannot compile; the message says what to install."""


def build(target: Path) -> Path:
    """The folder to put on PYTHONPATH, compiled under `target` unless it is there. Takes about a minute when it is not.

    Raises:
        NoCompilerError: there is no C compiler, or Cython is not installed.
    """
    folder = target / _key()
    if folder.exists():
        return folder
    compiler = sysconfig.get_config_var("CC") or "cc"
    if shutil.which(compiler.split()[0]) is None:
        raise NoCompilerError(f"no C compiler ({compiler}); on Debian: apt-get install gcc libc6-dev")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        work = Path(scratch) / "tree"
        shutil.copytree(PACKAGE, work / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
        _compile(work)
        for leftover in work.rglob("*.c"):
            leftover.unlink()
        shutil.rmtree(work / "build", ignore_errors=True)
        if not folder.exists():
            work.rename(folder)
    return folder


def _key() -> str:
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode())
    for path in [Path(__file__), ROOT / "constraints.txt", *sorted(PACKAGE.rglob("*.py"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(work: Path) -> None:
    try:
        from Cython.Build import cythonize
        from setuptools import Distribution, Extension
    except ImportError as error:
        raise NoCompilerError("Cython is not installed; run `make setup`") from error
    sources = [
        path.relative_to(work)
        for folder in HOT_FOLDERS
        for path in sorted((work / PACKAGE.name / folder).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    jobs = len(os.sched_getaffinity(0))
    before = Path.cwd()
    os.chdir(work)
    try:
        extensions = cythonize(
            [
                Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=["-O2", "-g0", "-w"])
                for path in sources
            ],
            # Annotations are for readers and mypy, never C types: an int stays a Python int.
            compiler_directives={"language_level": "3", "annotation_typing": False, "binding": True},
            nthreads=jobs,
            quiet=True,
        )
        distribution = Distribution({"name": "tidegate-router-native", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.inplace = True
        command.parallel = jobs
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)


def main() -> int:
    """Print the folder; exit code 2 where nothing can be compiled."""
    saved = os.dup(1)
    os.dup2(2, 1)  # the compiler's chatter is not the answer
    try:
        folder = build(ROOT / "build" / "native")
    except NoCompilerError as error:
        print(f"native: {error}", file=sys.stderr)  # noqa: T201
        return 2
    finally:
        os.dup2(saved, 1)
    print(folder)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
