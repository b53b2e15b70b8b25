"""What crosses the wire comes back as it was."""

from __future__ import annotations

import pytest

from shared.connector.base import Offer, Ticket
from shared.errors import InvalidRequestError
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.worker.peers import wire

LAYOUT = KVLayout.single(num_layers=3, num_kv_heads=2, block_size=16, head_dim=80, dtype="float16")
TICKET = Ticket(
    transfer_id=bytes(range(16)),
    connector="zmq",
    address="tcp://127.0.0.1:1234",
    request_id="r-1",
    sender=WorkerId("prefill-0", "a"),
    receiver=WorkerId("decode-0", "b"),
    num_blocks=7,
    layout=LAYOUT,
)


def test_ticket() -> None:
    assert wire.ticket_from_wire(wire.ticket_to_wire(TICKET)) == TICKET


@pytest.mark.parametrize(
    ("given", "expected", "fits"),
    [
        ((7,), (7,), True),
        ((), (7,), True),  # by a peer that knows no groups
        ((4, 3), (4, 3), True),
        ((), (4, 3), False),
        ((3, 4), (4, 3), False),
        ((4, 3, 0), (4, 3), False),
        ((4, 4), (4, 4), False),  # more than the ticket has
    ],
)
def test_a_ticket_says_how_many_blocks_are_whose(
    given: tuple[int, ...], expected: tuple[int, ...], fits: bool
) -> None:
    message = wire.ticket_to_wire(TICKET, given)
    if fits:
        wire.check_group_blocks(message, expected)
    else:
        with pytest.raises(InvalidRequestError, match="by group"):
            wire.check_group_blocks(message, expected)


def test_a_layout_names_the_scales_of_its_checkpoint() -> None:
    layout = KVLayout.of(LAYOUT.groups, block_size=16, dtype="int8", scales="f00d")
    assert wire.layout_from_wire(wire.layout_to_wire(layout)) == layout


def test_a_group_of_an_unknown_kind_is_refused() -> None:
    message = wire.layout_to_wire(KVLayout.of(LAYOUT.groups * 2, block_size=16, dtype="float16"))
    message.groups[1].kind = "spiral"
    with pytest.raises(InvalidRequestError, match="spiral"):
        wire.layout_from_wire(message)


def test_a_ticket_with_a_short_id_is_refused() -> None:
    message = wire.ticket_to_wire(TICKET)
    message.transfer_id = b"short"
    with pytest.raises(InvalidRequestError, match="16 bytes"):
        wire.ticket_from_wire(message)


def test_offer() -> None:
    offer = Offer(connector="shm", address="/run/x", params={"boot_id": "1"})
    assert wire.offer_from_wire(wire.offer_to_wire(offer)) == offer
