"""Hidden states leave behind the KV, all of a ticket or nothing, and fail by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.v1.prefill_pb2 import PrefillRequest, WantedStates
from baton.v1.transfer_pb2 import TransferTicket
from services.prefill.hidden_sender import HiddenSender, wish_of
from shared.connector.base import Ticket
from shared.engine.prompt_hidden import HiddenFormat, PlacedHidden
from shared.engine.sequence.events import Admitted
from shared.errors import TransferError, TransferFailure
from shared.identity import WorkerId
from shared.kv.layout import KVLayout
from tests.fakes.engine.engines import make_engine
from tests.fakes.engine.model import FakeLoadedModel
from tests.unit.prefill.test_publisher import Recorder, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.step.hidden import HiddenPool

#: Four rows in a block.
FORM = HiddenFormat(
    layers=(), final=True, dtype="float32", row_size=8, row_bytes=32, rows_per_block=4
)
LAYOUT = KVLayout.single(num_layers=1, num_kv_heads=1, block_size=4, head_dim=4, dtype="float32")


class Door:
    """A connector that leads to a recorder, or nowhere."""

    def __init__(self, error: Exception | None = None) -> None:
        self.recorder = Recorder()
        self._error = error

    async def connect(self, ticket: Ticket, timeout_s: float) -> Recorder:
        if self._error is not None:
            raise self._error
        return self.recorder


def sender_to(door: Door, num_blocks: int) -> HiddenSender:
    ticket = Ticket(
        transfer_id=bytes(16), connector="", address="", request_id="r",
        sender=WorkerId.born("p"), receiver=WorkerId.born("d"),
        num_blocks=num_blocks, layout=LAYOUT,
    )  # fmt: skip
    return HiddenSender(door, ticket)  # type: ignore[arg-type]


def admitted(num_cached: int, skipped: int, blocks: Sequence[int], first: int = 0) -> Admitted:
    placed = PlacedHidden(FORM, first, skipped, tuple(blocks))
    return Admitted(
        request_id="r",
        tables=((),),
        num_cached_tokens=num_cached,
        num_final_tokens=0,
        hidden=placed,
    )


async def test_blocks_leave_as_they_fill_and_the_last_ones_at_the_end() -> None:
    door = Door()
    sender = sender_to(door, 4)
    sender.begin(admitted(0, 0, (7, 8, 9, 5)), 1.0)
    await settle()
    sender.advance(9)
    await settle()
    assert door.recorder.pushed == [(0, (7, 8))]
    sent = sender.sent()
    assert sent is not None
    assert sent.first_position == 0
    await sender.finish(1.0)
    assert door.recorder.pushed == [(0, (7, 8)), (2, (9, 5))]
    await sender.close()


async def test_what_is_not_computed_is_filled_with_anything() -> None:
    """The receiver is told from where on there are states."""
    door = Door()
    sender = sender_to(door, 4)
    sender.begin(admitted(10, 2, (7, 8)), 1.0)
    sender.advance(10)
    await settle()
    assert door.recorder.pushed == [(0, (7, 7))]
    sent = sender.sent()
    assert sent is not None
    assert sent.first_position == 10
    await sender.finish(1.0)
    assert door.recorder.pushed[1:] == [(2, (7, 8))]
    await sender.close()


@pytest.mark.parametrize("num_blocks", [3, 5])
async def test_a_ticket_that_does_not_fit_is_not_used(num_blocks: int) -> None:
    sender = sender_to(Door(), num_blocks)
    sender.begin(admitted(0, 0, (7, 8, 9, 5)), 1.0)
    sender.advance(9)
    assert sender.sent() is None
    await sender.finish(1.0)
    await sender.close()


async def test_nothing_is_promised_without_a_connection() -> None:
    sender = sender_to(Door(TransferError(TransferFailure.PEER_LOST, "gone")), 1)
    sender.begin(admitted(0, 0, (7,)), 1.0)
    await settle()
    assert sender.sent() is None
    with pytest.raises(TransferError, match="gone"):
        await sender.finish(1.0)
    await sender.close()


def wanted(**fields: Any) -> PrefillRequest:
    own = {"final": True, "dtype": "float32", "first_position": 4, **fields}
    num_blocks = own.pop("num_blocks", None)
    engine = make_engine()
    size = FakeLoadedModel().spec.hidden_size
    if num_blocks is None:
        num_blocks = -(-96 // (engine.layout.block_bytes // (4 * size)))
    ticket = TransferTicket(num_blocks=num_blocks)
    return PrefillRequest(token_ids=range(100), wanted_states=WantedStates(ticket=ticket, **own))


def pool() -> HiddenPool:
    return make_engine().hidden


def test_states_that_the_model_has_are_kept() -> None:
    wish = wish_of(wanted(), pool())
    assert wish is not None
    assert wish.first_position == 4
    assert wish.format.final


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "bfloat16"},
        {"final": False},
        {"layers": [99]},
        {"first_position": 100},
        {"first_position": 2**32 - 1},
        {"num_blocks": 1000},
    ],
)
def test_what_it_does_not_have_is_passed_over(fields: dict[str, Any]) -> None:
    assert wish_of(wanted(**fields), pool()) is None


def test_who_wants_nothing_gets_nothing() -> None:
    assert wish_of(PrefillRequest(token_ids=range(100)), pool()) is None
