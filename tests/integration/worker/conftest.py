from collections.abc import Iterator

import pytest
from sim_worker_process import WorkerProcess, sim_worker


@pytest.fixture(scope="module")
def fast() -> Iterator[WorkerProcess]:
    """A worker whose steps are instant."""
    with sim_worker("--max-body-bytes", "65536", "--served-name", "echo", "--served-name", "sim") as worker:
        yield worker


@pytest.fixture(scope="module")
def steady() -> Iterator[WorkerProcess]:
    """A worker that gives every running request a token each 10 ms."""
    with sim_worker("--decode-step-seconds", "0.01", "--kv-blocks", "4096") as worker:
        yield worker
