"""What importing a component brings in. Each check runs in a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

COMPONENTS = [
    "tidegate_crds",
    "tidegate_proto",
    "tidegate_router",
    "tidegate_operator",
    "tidegate_worker",
    "tidegate_cli",
]


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60, cwd=folder
    )


def modules_after(*imports: str, folder: Path) -> set[str]:
    script = "".join(f"import {name}\n" for name in imports) + "import sys; print(*sorted(sys.modules))"
    done = run_python("-W", "error", "-c", script, folder=folder)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def submodules(package: str) -> list[str]:
    """Every module of a package by its files, without importing one; `__main__` runs a program and is left out."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = [".".join([package, *path.relative_to(root).with_suffix("").parts]) for path in sorted(root.rglob("*.py"))]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def test_importing_every_module_of_the_router_brings_in_no_torch(tmp_path: Path) -> None:
    loaded = modules_after(*submodules("tidegate_router"), folder=tmp_path)
    assert loaded & {"torch", "transformers", "tokenizers", "kubernetes"} == set()


def test_importing_every_module_of_the_engine_brings_in_no_torch(tmp_path: Path) -> None:
    loaded = modules_after(*submodules("tidegate_worker.engine"), folder=tmp_path)
    assert loaded & {"torch", "transformers"} == set()


def test_importing_every_module_of_the_command_line_and_operator_brings_in_no_torch(tmp_path: Path) -> None:
    loaded = modules_after(*submodules("tidegate_cli"), *submodules("tidegate_operator"), folder=tmp_path)
    assert loaded & {"torch", "transformers"} == set()


@pytest.mark.parametrize("package", COMPONENTS)
def test_each_package_imports_alone_from_any_folder(package: str, tmp_path: Path) -> None:
    assert package in modules_after(package, folder=tmp_path)


@pytest.mark.parametrize("program", ["tidegate_cli", "tidegate_router", "tidegate_worker"])
def test_each_program_answers_help_under_python_m_from_the_repository_root(program: str) -> None:
    # from the root on purpose: `operator/` beside the standard library's module must not matter
    done = run_python("-m", program, "--help", folder=Path(__file__).resolve().parents[3])
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
