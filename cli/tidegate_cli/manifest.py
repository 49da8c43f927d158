"""Reading the manifest that a command is given."""

from pathlib import Path

from tidegate_crds.decoding import load_pool
from tidegate_crds.errors import ManifestError
from tidegate_crds.inference_pool import InferencePool
from tidegate_operator.local.machine import this_machine
from tidegate_operator.plan.local import WORKER_MODULE, PlanError, check_fits, worker_names

from tidegate_cli.errors import ManifestFileError
from tidegate_cli.worker_args import worker_args_errors

_MAX_BYTES = 4 << 20


def read_local_pool(path: Path, worker_module: str = WORKER_MODULE) -> InferencePool:
    """The pool in a manifest that can run on this machine; raises ManifestFileError as `read_pool` does."""
    pool = read_pool(path, worker_module)
    try:
        check_local(pool)
    except PlanError as error:
        raise ManifestFileError(f"{path}: {error}") from error
    return pool


def check_local(pool: InferencePool) -> None:
    """Raise PlanError for a valid pool that cannot run on this machine."""
    check_fits(pool, this_machine())
    worker_names(pool)


def read_pool(path: Path, worker_module: str = WORKER_MODULE) -> InferencePool:
    """The pool in a manifest; raises ManifestFileError with everything that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ManifestFileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, so no manifest")
        pool = load_pool(content.decode())
    except OSError as error:
        raise ManifestFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except ManifestError as error:
        raise ManifestFileError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
    if errors := worker_args_errors(pool, known_worker=worker_module == WORKER_MODULE):
        raise ManifestFileError("\n".join(f"{path}: {error}" for error in errors))
    return pool
