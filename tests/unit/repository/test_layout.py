"""What holds of the repository as a whole: layout, addresses, generated files, documented commands."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "crds": "tidegate_crds",
    "proto": "tidegate_proto",
    "router": "tidegate_router",
    "operator": "tidegate_operator",
    "worker": "tidegate_worker",
    "cli": "tidegate_cli",
}
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted|files\.python|artifactory|nexus|jfrog|devpi|pkg\.dev|--(?:extra-)?index-url\s*[= ]\s*\S"
    r"|ghcr\.io|docker\.io|quay\.io|gcr\.io",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.$})~:/-])/(?:work|home|root|Users|mnt|scratch)/[\w.]")


def committed_files() -> list[Path]:
    """Files that git knows and that are there; outside a checkout (an unpacked archive) the caller skips."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in files if path.is_file() and path != Path(__file__)]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in committed_files():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_no_top_level_folder_is_a_package() -> None:
    # a top-level package `operator` would shadow the standard library's under `python -m`
    assert [str(path) for path in ROOT.glob("*/__init__.py")] == []


def test_each_component_folder_holds_its_one_package() -> None:
    for folder, package in PACKAGES.items():
        packages = [path.parent.name for path in (ROOT / folder).glob("*/__init__.py")]
        assert packages == [package]


def test_no_committed_file_names_a_package_registry() -> None:
    hits = [f"{name}: {match.group()}" for name, text in texts() if (match := REGISTRY_HOST.search(text))]
    assert hits == []


def test_no_committed_file_names_a_folder_of_one_machine() -> None:
    hits = [f"{name}: {match.group()}" for name, text in texts() if (match := MACHINE_PATH.search(text))]
    assert hits == []


def test_constraints_are_pins_and_nothing_else() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,_-]+\])?==[^ @]+( ; .+)?|#.*|", line), line
        assert "://" not in line


def test_every_declared_dependency_is_pinned() -> None:
    pinned = {
        _canonical(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {_canonical(re.split(r"[\[<>=!~ ;]", dependency)[0]) for dependency in declared} - {"tidegate"}
    assert names - pinned == set()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def test_generated_files_are_in_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("grpc_tools", reason="protobuf code needs the dev extra")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    generate = _load(ROOT / "tools" / "generate.py")
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tools_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/troubleshooting.md", ".ci/run"])
def test_every_make_target_that_is_written_down_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:`|^ *|&& *)make ([a-z][a-z0-9-]*)", (ROOT / page).read_text(), re.MULTILINE))
    assert used
    assert used - targets == set()


def test_links_between_pages_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"


def test_every_example_decodes() -> None:
    from tidegate_crds.decoding import load_pool

    examples = sorted((ROOT / "examples" / "pools").glob("*.yaml"))
    assert examples
    for example in examples:
        load_pool(example.read_text())
