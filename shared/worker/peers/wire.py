"""Conversion between wire messages and the worker's records. Takes no decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import transfer_pb2
from shared.connector.base import Offer, Ticket
from shared.errors import InvalidRequestError
from shared.kv.group_rules import GroupKind
from shared.kv.identity import HASH_BYTES
from shared.kv.layout import LAYOUT_VERSION, KVGroup, KVLayout
from shared.rpc.wire import worker_id_from_wire, worker_id_to_wire

if TYPE_CHECKING:
    from collections.abc import Sequence


def split_resumed(
    token_ids: Sequence[int], num_resumed_tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the prompt, and the output that was emitted before.

    Raises:
        InvalidRequestError: nothing is left for the prompt.
    """
    num_prompt_tokens = len(token_ids) - num_resumed_tokens
    if num_resumed_tokens and num_prompt_tokens < 1:
        raise InvalidRequestError(
            f"{num_resumed_tokens} of {len(token_ids)} tokens cannot be output of a prompt",
            param="num_resumed_tokens",
        )
    return tuple(token_ids[:num_prompt_tokens]), tuple(token_ids[num_prompt_tokens:])


def layout_to_wire(layout: KVLayout) -> transfer_pb2.KVLayout:
    """Return the message with all fields of the layout.

    Peers without groups read the first one, and refuse a grouped version.
    """
    first = layout.groups[0]
    message = transfer_pb2.KVLayout(
        num_layers=first.num_layers,
        num_kv_heads=first.num_kv_heads,
        block_size=layout.block_size,
        head_dim=first.head_dim,
        dtype=layout.dtype,
        version=layout.version,
        scales=layout.scales,
    )
    if layout.version > LAYOUT_VERSION:
        for group in layout.groups:
            message.groups.add(
                num_layers=group.num_layers,
                num_kv_heads=group.num_kv_heads,
                head_dim=group.head_dim,
                kind=group.kind,
                window=group.window,
                state_size=group.state_size,
            )
    return message


def layout_from_wire(message: transfer_pb2.KVLayout) -> KVLayout:
    """Return the layout of a message.

    Raises:
        InvalidRequestError: the kind of a group is unknown.
    """
    first = KVGroup(
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
    )
    return KVLayout(
        groups=tuple(_group_from_wire(group) for group in message.groups) or (first,),
        block_size=message.block_size,
        dtype=message.dtype,
        version=message.version,
        scales=message.scales,
    )


def _group_from_wire(message: transfer_pb2.KVGroup) -> KVGroup:
    if message.kind not in set(GroupKind):
        raise InvalidRequestError(f"a KV group of kind {message.kind!r}", param="layout")
    if message.kind == GroupKind.LATENT and message.num_kv_heads != 1:
        raise InvalidRequestError(
            f"a latent KV group of {message.num_kv_heads} heads", param="layout"
        )
    if (message.kind in (GroupKind.WINDOW, GroupKind.CHUNK)) != bool(message.window):
        raise InvalidRequestError(
            f"{message.kind} with a window of {message.window}", param="layout"
        )
    if (message.kind == GroupKind.STATE) != bool(message.state_size):
        raise InvalidRequestError(
            f"{message.kind} with a state of {message.state_size} numbers", param="layout"
        )
    return KVGroup(
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        kind=GroupKind(message.kind),
        window=message.window,
        state_size=message.state_size,
    )


def ticket_to_wire(ticket: Ticket, group_blocks: Sequence[int] = ()) -> transfer_pb2.TransferTicket:
    """Return the message of a ticket. `group_blocks`: number of blocks of each KV group."""
    return transfer_pb2.TransferTicket(
        transfer_id=ticket.transfer_id,
        connector=ticket.connector,
        address=ticket.address,
        request_id=ticket.request_id,
        sender=worker_id_to_wire(ticket.sender),
        receiver=worker_id_to_wire(ticket.receiver),
        num_blocks=ticket.num_blocks,
        layout=layout_to_wire(ticket.layout),
        group_blocks=group_blocks,
    )


def check_group_blocks(message: transfer_pb2.TransferTicket, expected: Sequence[int]) -> None:
    """Check that a ticket for KV has these numbers of blocks of each group.

    Raises:
        InvalidRequestError: it has not.
    """
    given = list(message.group_blocks) or [message.num_blocks]
    if given != list(expected) or sum(given) != message.num_blocks:
        raise InvalidRequestError(
            f"request {message.request_id}: a ticket of {given} blocks by group, "
            f"{list(expected)} are to be moved",
            param="ticket",
        )


def ticket_from_wire(message: transfer_pb2.TransferTicket) -> Ticket:
    """Return the ticket of a message.

    Raises:
        InvalidRequestError: it is no valid ticket.
    """
    if len(message.transfer_id) != 16:
        raise InvalidRequestError(
            f"a transfer id has 16 bytes, not {len(message.transfer_id)}", param="ticket"
        )
    return Ticket(
        transfer_id=message.transfer_id,
        connector=message.connector,
        address=message.address,
        request_id=message.request_id,
        sender=worker_id_from_wire(message.sender),
        receiver=worker_id_from_wire(message.receiver),
        num_blocks=message.num_blocks,
        layout=layout_from_wire(message.layout),
    )


def hashes_from_wire(values: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the hashes of consecutive blocks of one prefix.

    Raises:
        InvalidRequestError: one is no hash, or comes twice: a prefix never repeats a block.
    """
    for value in values:
        if len(value) != HASH_BYTES:
            raise InvalidRequestError(
                f"a block hash has {HASH_BYTES} bytes, not {len(value)}", param="block_hashes"
            )
    if len(set(values)) < len(values):
        raise InvalidRequestError(
            f"{len(values)} block hashes, {len(set(values))} of them different",
            param="block_hashes",
        )
    return tuple(values)


def offer_to_wire(offer: Offer) -> transfer_pb2.ConnectorOffer:
    """Return the message with all fields of the offer."""
    return transfer_pb2.ConnectorOffer(
        connector=offer.connector, address=offer.address, params=offer.params
    )


def offer_from_wire(message: transfer_pb2.ConnectorOffer) -> Offer:
    """Return the offer with all fields of the message."""
    return Offer(connector=message.connector, address=message.address, params=dict(message.params))
