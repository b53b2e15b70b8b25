"""A worker's record comes through the wire whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.v1 import common_pb2, directory_pb2
from shared.directory.base import AdapterPlace, AdapterState, WorkerLoad
from shared.directory.wire import (
    load_from_wire,
    load_to_wire,
    record_from_wire,
    record_to_wire,
)
from shared.errors import InvalidRequestError
from shared.identity import Role
from shared.request.adapter_ref import AdapterRef
from tests.suites.directory import A, record

WHOLE = replace(
    record(A),
    probe="ab",
    identity="cd" * 32,
    generation=3,
    generation_identity="ef" * 32,
    joined_ms=1_764_000_000_000,
    serves=frozenset({Role.PREFILL, Role.DECODE}),
    num_landing_blocks=7,
    max_num_seqs=9,
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


LOAD = WorkerLoad(
    num_running=1,
    num_waiting=2,
    num_free_blocks=3,
    draining=True,
    unhealthy=True,
    adapters=(
        AdapterState(
            adapter=AdapterRef("sql", bytes(range(32)), "/adapters/sql"),
            rank=16,
            place=AdapterPlace.HOST,
            load_ms=12.5,
            num_running=4,
            num_waiting=5,
        ),
    ),
    max_adapters=6,
    max_held_adapters=7,
    preference=Role.PREFILL,
)


def test_all_fields_of_a_load_come_through() -> None:
    packed = load_to_wire(LOAD).SerializeToString()
    assert load_from_wire(directory_pb2.WorkerLoad.FromString(packed)) == LOAD


def test_roles_of_a_later_version_are_passed_over() -> None:
    message = record_to_wire(WHOLE)
    del message.serves[:]
    message.serves.extend([99, common_pb2.ROLE_DECODE])
    assert record_from_wire(message).served == {Role.DECODE}
    assert load_from_wire(directory_pb2.WorkerLoad(preference=99)).preference is None


def test_a_worker_that_says_nothing_serves_its_role() -> None:
    message = record_to_wire(WHOLE)
    message.ClearField("serves")
    assert record_from_wire(message).served == {WHOLE.role}


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("place", directory_pb2.ADAPTER_PLACE_UNSPECIFIED, "no place"),
        ("load_ms", float("nan"), "load_ms"),
    ],
)
def test_a_malformed_state_of_an_adapter_is_refused(name: str, value: float, told: str) -> None:
    message = load_to_wire(LOAD)
    setattr(message.adapters[0], name, value)
    with pytest.raises(InvalidRequestError, match=told):
        load_from_wire(message)


def test_a_digest_of_another_length_is_refused() -> None:
    message = load_to_wire(LOAD)
    message.adapters[0].adapter.digest = b"short"
    with pytest.raises(InvalidRequestError, match="32 bytes"):
        load_from_wire(message)
