"""Beds that the tests of a module share: starting a router costs half a second."""

from collections.abc import Iterator

import pytest
from fault_bed import FaultBed, fault_bed


@pytest.fixture(scope="module")
def shared_bed() -> Iterator[FaultBed]:
    with fault_bed() as bed:
        yield bed


@pytest.fixture
async def bed(shared_bed: FaultBed) -> FaultBed:
    """The module's bed with every worker well and in use."""
    await shared_bed.heal()
    return shared_bed
