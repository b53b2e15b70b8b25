"""Conversion between the directory's records and proto/baton/v1/directory.proto."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from baton.v1 import common_pb2, directory_pb2
from shared.directory.base import (
    AdapterPlace,
    AdapterState,
    RegistryChange,
    RegistryEvent,
    WorkerLoad,
    WorkerRecord,
)
from shared.errors import InvalidRequestError
from shared.kv.tier import BlockTier
from shared.request.adapter_ref import adapter_from_wire, adapter_to_wire
from shared.rpc.wire import (
    role_from_wire,
    role_to_wire,
    roles_to_wire,
    worker_id_from_wire,
    worker_id_to_wire,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Maximum length of each text of a record. A model's name is often its path.
MAX_TEXT_CHARS = 4096
MAX_LABELS = 64
MAX_BLOCK_SIZE = 2**16
#: Adapters of one worker that are read; the rest is ignored.
MAX_ADAPTERS = 4096
_DIGESTS = ("namespace", "identity", "generation_identity")
_TEXTS = ("address", "model", "probe", *_DIGESTS)
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_PLACES = {
    AdapterPlace.KNOWN: directory_pb2.ADAPTER_PLACE_KNOWN,
    AdapterPlace.HOST: directory_pb2.ADAPTER_PLACE_HOST,
    AdapterPlace.DEVICE: directory_pb2.ADAPTER_PLACE_DEVICE,
}
_PLACES_BACK = {wire: place for place, wire in _PLACES.items()}
_TIERS = {
    BlockTier.DEVICE: directory_pb2.TIER_DEVICE,
    BlockTier.HOST: directory_pb2.TIER_HOST,
    BlockTier.DISK: directory_pb2.TIER_DISK,
}
_TIERS_BACK = {wire: tier for tier, wire in _TIERS.items()} | {
    directory_pb2.TIER_UNSPECIFIED: BlockTier.DEVICE
}


def record_to_wire(record: WorkerRecord) -> directory_pb2.WorkerRecord:
    """Return the message with all fields of the record."""
    return directory_pb2.WorkerRecord(
        worker=worker_id_to_wire(record.worker),
        role=role_to_wire(record.role),
        address=record.address,
        model=record.model,
        namespace=record.namespace,
        block_size=record.block_size,
        num_blocks=record.num_blocks,
        max_model_len=record.max_model_len,
        labels=record.labels,
        probe=record.probe,
        identity=record.identity,
        generation=record.generation,
        generation_identity=record.generation_identity,
        joined_ms=record.joined_ms,
        serves=roles_to_wire(record.serves),
        num_landing_blocks=record.num_landing_blocks,
        max_num_seqs=record.max_num_seqs,
    )


def record_from_wire(message: directory_pb2.WorkerRecord) -> WorkerRecord:
    """Return a worker's record.

    Raises:
        InvalidRequestError: the message is malformed.
    """
    role = role_from_wire(message.role)
    if role is None:
        raise InvalidRequestError("role must be prefill or decode", param="role")
    if not message.address:
        raise InvalidRequestError("address must be host:port", param="address")
    _check_sizes(message)
    return WorkerRecord(
        worker=worker_id_from_wire(message.worker),
        role=role,
        address=message.address,
        model=message.model,
        namespace=message.namespace,
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_model_len=message.max_model_len,
        labels=dict(message.labels),
        probe=message.probe,
        identity=message.identity,
        generation=message.generation,
        generation_identity=message.generation_identity,
        joined_ms=message.joined_ms,
        # Roles of later versions are passed over.
        serves=frozenset(filter(None, map(role_from_wire, message.serves))),
        num_landing_blocks=message.num_landing_blocks,
        max_num_seqs=message.max_num_seqs,
    )


def _check_sizes(message: directory_pb2.WorkerRecord) -> None:
    """Refuse values that would harm a router's computations, whatever a worker reports."""
    for name in ("block_size", "num_blocks", "max_model_len"):
        if getattr(message, name) < 1:
            raise InvalidRequestError(f"{name} must be at least 1", param=name)
    if message.block_size > MAX_BLOCK_SIZE:
        text = f"block_size must be at most {MAX_BLOCK_SIZE}, not {message.block_size}"
        raise InvalidRequestError(text, param="block_size")
    for name in _TEXTS:
        if len(getattr(message, name)) > MAX_TEXT_CHARS:
            text = f"{name} must have at most {MAX_TEXT_CHARS} characters"
            raise InvalidRequestError(text, param=name)
    for name in _DIGESTS:
        if _HEX.fullmatch(getattr(message, name)) is None:
            raise InvalidRequestError(f"{name} must be a hex digest", param=name)
    if len(message.labels) > MAX_LABELS or any(
        len(key) + len(value) > MAX_TEXT_CHARS for key, value in message.labels.items()
    ):
        text = f"labels must be at most {MAX_LABELS}, of {MAX_TEXT_CHARS} characters each"
        raise InvalidRequestError(text, param="labels")


def load_to_wire(load: WorkerLoad) -> directory_pb2.WorkerLoad:
    """Return the message with all fields of the load."""
    return directory_pb2.WorkerLoad(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_free_blocks=load.num_free_blocks,
        draining=load.draining,
        unhealthy=load.unhealthy,
        adapters=[adapter_state_to_wire(state) for state in load.adapters],
        max_adapters=load.max_adapters,
        max_held_adapters=load.max_held_adapters,
        preference=(
            common_pb2.ROLE_UNSPECIFIED
            if load.preference is None
            else role_to_wire(load.preference)
        ),
    )


def load_from_wire(message: directory_pb2.WorkerLoad) -> WorkerLoad:
    """Return the load with all fields of the message.

    Raises:
        InvalidRequestError: the message is malformed.
    """
    return WorkerLoad(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_free_blocks=message.num_free_blocks,
        draining=message.draining,
        unhealthy=message.unhealthy,
        adapters=tuple(adapter_state_from_wire(each) for each in message.adapters[:MAX_ADAPTERS]),
        max_adapters=message.max_adapters,
        max_held_adapters=message.max_held_adapters,
        preference=role_from_wire(message.preference),
    )


def adapter_state_to_wire(state: AdapterState) -> directory_pb2.AdapterState:
    """Return the message with all fields of the state."""
    return directory_pb2.AdapterState(
        adapter=adapter_to_wire(state.adapter),
        rank=state.rank,
        place=_PLACES[state.place],
        load_ms=state.load_ms,
        num_running=state.num_running,
        num_waiting=state.num_waiting,
    )


def adapter_state_from_wire(message: directory_pb2.AdapterState) -> AdapterState:
    """Return the state of an adapter on a worker.

    Raises:
        InvalidRequestError: the message is malformed.
    """
    place = _PLACES_BACK.get(message.place)
    if place is None:
        raise InvalidRequestError(f"there is no place {message.place}", param="place")
    if not 0 <= message.load_ms < math.inf:
        raise InvalidRequestError(f"load_ms must be at least 0, not {message.load_ms}")
    return AdapterState(
        adapter=adapter_from_wire(message.adapter),
        rank=message.rank,
        place=place,
        load_ms=message.load_ms,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
    )


def status_to_wire(event: RegistryEvent) -> directory_pb2.WorkerStatus:
    """Return the message of an event's record and load."""
    return directory_pb2.WorkerStatus(
        record=record_to_wire(event.record), load=load_to_wire(event.load)
    )


def status_from_wire(message: directory_pb2.WorkerStatus) -> RegistryEvent:
    """Return a live worker as a JOINED event."""
    return RegistryEvent(
        change=RegistryChange.JOINED,
        record=record_from_wire(message.record),
        load=load_from_wire(message.load),
    )


def tier_to_wire(tier: BlockTier) -> directory_pb2.Tier.ValueType:
    """Return the tier's number on the wire."""
    return _TIERS[tier]


def tier_from_wire(tier: directory_pb2.Tier.ValueType) -> BlockTier:
    """Return the tier of a number.

    Raises:
        InvalidRequestError: the number is unknown.
    """
    try:
        return _TIERS_BACK[tier]
    except KeyError:
        raise InvalidRequestError(f"there is no tier {tier}", param="tier") from None


def tiers_to_wire(
    hashes: Mapping[BlockTier, Sequence[bytes]],
) -> Iterable[directory_pb2.TierBlocks]:
    """Return one message per tier."""
    return [
        directory_pb2.TierBlocks(tier=tier_to_wire(tier), hashes=held)
        for tier, held in hashes.items()
    ]
