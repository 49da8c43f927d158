"""Writes, or with --check compares, every generated file: protobuf code, CRD YAML, reference docs.

A generator is a function that returns {path: content}; add new ones to GENERATORS.
"""

import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from reference_docs import api_page, cli_page, crd_yaml, metrics_page, router_config_page

ROOT = Path(__file__).resolve().parent.parent


def protobuf_code() -> dict[Path, bytes]:
    """Python modules and type stubs for each .proto under proto/."""
    from grpc_tools import protoc

    proto_root = ROOT / "proto"
    scripts = Path(sys.executable).parent
    sources = sorted(str(path.relative_to(proto_root)) for path in proto_root.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        outs = [f"--{kind}_out={out}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")]
        # the plug-ins stand beside the interpreter, which need not be on PATH
        plugins = [f"--plugin=protoc-gen-{kind}={scripts}/protoc-gen-{kind}" for kind in ("mypy", "mypy_grpc")]
        well_known = resources.files("grpc_tools") / "_proto"
        if protoc.main(["protoc", f"-I{proto_root}", f"-I{well_known}", *plugins, *outs, *sources]) != 0:
            raise SystemExit("protoc failed")
        return {proto_root / path.relative_to(out): path.read_bytes() for path in Path(out).rglob("*.py*")}


GENERATORS: list[Callable[[], dict[Path, bytes]]] = [
    protobuf_code,
    crd_yaml,
    api_page,
    router_config_page,
    cli_page,
    metrics_page,
]


def main(arguments: list[str]) -> int:
    """Exit code 1 with the names of stale files under --check."""
    check = "--check" in arguments
    stale = []
    for generator in GENERATORS:
        for path, content in sorted(generator().items()):
            if path.exists() and path.read_bytes() == content:
                continue
            stale.append(path.relative_to(ROOT))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    for path in stale:
        print(f"{'out of date, run `make generate`' if check else 'wrote'}: {path}")  # noqa: T201
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
