"""A worker's record comes through the wire whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.v1 import directory_pb2
from shared.directory.wire import record_from_wire, record_to_wire
from shared.errors import InvalidRequestError
from tests.suites.directory import A, record

WHOLE = replace(
    record(A),
    probe="ab",
    identity="cd" * 32,
    generation=3,
    generation_identity="ef" * 32,
    joined_ms=1_764_000_000_000,
)


def test_all_fields_come_through() -> None:
    packed = record_to_wire(WHOLE).SerializeToString()
    assert record_from_wire(directory_pb2.WorkerRecord.FromString(packed)) == WHOLE


@pytest.mark.parametrize("name", ["namespace", "identity", "generation_identity"])
def test_a_digest_that_is_none_is_refused(name: str) -> None:
    message = record_to_wire(WHOLE)
    setattr(message, name, "no digest")
    with pytest.raises(InvalidRequestError, match=f"{name} must be a hex digest"):
        record_from_wire(message)
