"""Reading the manifest that a command is given."""

from pathlib import Path

from tidegate_crds.decoding import load_pool
from tidegate_crds.errors import ManifestError
from tidegate_crds.inference_pool import InferencePool
from tidegate_operator.plan.local import PlanError, worker_names

from tidegate_cli.errors import ManifestFileError

_MAX_BYTES = 4 << 20


def read_local_pool(path: Path) -> InferencePool:
    """The pool in a manifest that can run on this machine; raises ManifestFileError as `read_pool` does."""
    pool = read_pool(path)
    try:
        worker_names(pool)
    except PlanError as error:
        raise ManifestFileError(f"{path}: {error}") from error
    return pool


def read_pool(path: Path) -> InferencePool:
    """The pool in a manifest; raises ManifestFileError with everything that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ManifestFileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, so no manifest")
        return load_pool(content.decode())
    except OSError as error:
        raise ManifestFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except ManifestError as error:
        raise ManifestFileError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
