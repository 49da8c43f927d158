"""Reading the manifest that a command is given."""

from pathlib import Path

from tidegate_crds.decoding import load_pool
from tidegate_crds.errors import ManifestError
from tidegate_crds.inference_pool import InferencePool
from tidegate_operator.plan.local import PlanError, worker_names

from tidegate_cli.errors import ManifestFileError

_MAX_BYTES = 4 << 20


def read_pool(path: Path) -> InferencePool:
    """The pool in a manifest that can run locally; raises ManifestFileError with everything that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ManifestFileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB, so no manifest")
        pool = load_pool(content.decode())
        worker_names(pool)
    except OSError as error:
        raise ManifestFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except (ManifestError, PlanError) as error:
        raise ManifestFileError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error
    return pool
