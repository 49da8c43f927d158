"""The routers that are measured: ours and its peers, each as a command that serves a port in front of given workers."""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import BenchError, free_ports

PEERS_FOLDER = Path(".tools") / "peers"
_WITHOUT_PEERS = "--peers none measures our router alone"


@dataclass(frozen=True, slots=True)
class Router:
    """A router that can be measured. `command(port, workers, folder)` starts it on loopback."""

    name: str
    command: Callable[[int, list[str], Path], list[str]]
    environment: dict[str, str] = field(default_factory=dict)


def compiled_hot_path() -> Path | None:
    """The folder with the router's compiled modules, built when it is missing; None where nothing can be compiled."""
    print("setup: compiling the router's hot path (about a minute when it changed)", flush=True)
    finished = subprocess.run([sys.executable, "tools/native.py"], capture_output=True, text=True, check=False)
    if finished.returncode == 0:
        return Path(finished.stdout.strip())
    print(f"warning: measuring pure Python only: {finished.stderr.strip().splitlines()[-1]}", flush=True)
    return None


def tidegate(name: str, compiled: Path | None = None) -> Router:
    """Our router with its built-in scheduling, access log off as the peers' request logs are."""

    def command(port: int, workers: list[str], folder: Path) -> list[str]:
        config = folder / f"router-{port}.yaml"
        document = {
            "apiVersion": "router.tidegate.dev/v1alpha1",
            "kind": "RouterConfig",
            "listen": {"host": "127.0.0.1", "port": port},
            "accessLog": {"path": ""},
            "endpoints": [{"url": url, "name": f"backend-{index}"} for index, url in enumerate(workers)],
        }
        config.write_text(json.dumps(document))  # JSON is YAML
        return [sys.executable, "-m", "tidegate_router", "--config", str(config)]

    return Router(name, command, {"PYTHONPATH": str(compiled)} if compiled else {})


def vllm_router() -> Router:
    """vllm-router from PyPI, cache-aware policy, in an environment of its own."""
    version = "0.1.17"
    program = _installed("vllm-router", version)

    def command(port: int, workers: list[str], _folder: Path) -> list[str]:
        return [str(program), *_shared_arguments(port, workers, "warning")]

    return Router(f"vllm-router {version}", command)


def sglang_router() -> Router:
    """sglang-router from PyPI, cache-aware policy, in an environment of its own."""
    version = "0.3.2"
    program = _installed("sglang-router", version)

    def command(port: int, workers: list[str], _folder: Path) -> list[str]:
        return [str(program), "launch", *_shared_arguments(port, workers, "warn")]

    return Router(f"sglang-router {version}", command)


def _shared_arguments(port: int, workers: list[str], log_level: str) -> list[str]:
    [metrics_port] = free_ports(1)
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--policy", "cache_aware", "--worker-urls", *workers),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
        *("--worker-startup-check-interval", "1", "--log-level", log_level),
    ]


def _installed(distribution: str, version: str) -> Path:
    """The distribution's program in its own virtual environment, which is built when it is missing."""
    folder = PEERS_FOLDER / f"{distribution}-{version}"
    program = folder / "bin" / distribution
    marker = folder / ".installed"
    if not marker.exists():
        print(f"setup: installing {distribution} {version} into {folder}", flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"no virtual environment in {folder}: {error}; {_WITHOUT_PEERS}") from error
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        finished = subprocess.run([*pip, f"{distribution}=={version}"], capture_output=True, text=True, check=False)
        if finished.returncode:
            why = finished.stderr.strip()[-1000:]
            raise BenchError(f"pip could not install {distribution}=={version}; {_WITHOUT_PEERS}:\n{why}")
        marker.touch()
    return program


def require_programs() -> None:
    """See that wrk and nginx are there; as root on Debian install them. BenchError says what to do otherwise."""
    packages = {"wrk": "wrk", "nginx": "nginx-light"}
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise BenchError(f"this benchmark needs the programs wrk and nginx; on Debian: sudo {' '.join(install)}")
    print(f"setup: installing {' '.join(missing)}", flush=True)
    # RUNLEVEL=1 keeps the package from starting a system-wide nginx on port 80.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["apt-get", "update", "--quiet"], install):
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            raise BenchError(f"{' '.join(command)} failed:\n{(finished.stdout + finished.stderr).strip()[-1000:]}")
