"""What crosses the wire comes back as it was."""

from __future__ import annotations

import pytest

from shared.connector.base import Offer, Ticket
from shared.errors import InvalidRequestError
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from shared.worker.peers import wire

LAYOUT = KVLayout(num_layers=3, num_kv_heads=2, block_size=16, head_dim=80, dtype="float16")
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


def test_a_ticket_with_a_short_id_is_refused() -> None:
    message = wire.ticket_to_wire(TICKET)
    message.transfer_id = b"short"
    with pytest.raises(InvalidRequestError, match="16 bytes"):
        wire.ticket_from_wire(message)


def test_offer() -> None:
    offer = Offer(connector="shm", address="/run/x", params={"boot_id": "1"})
    assert wire.offer_from_wire(wire.offer_to_wire(offer)) == offer
