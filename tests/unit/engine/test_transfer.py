"""Hand-off between two engines in one process: blocks are copied by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.engine.sequence.events import Admitted, NewTokens
from shared.engine.sequence.request import KVSource
from shared.errors import InternalError, InvalidRequestError, RequestCancelledError
from shared.request.answer import FinishReason
from tests.fakes.engine.engines import (
    BLOCK_SIZE,
    Run,
    cached_hashes,
    drain,
    expected_tokens,
    generate,
    make_engine,
    make_request,
)

if TYPE_CHECKING:
    from shared.engine.engine import Engine

pytestmark = pytest.mark.usefixtures("step_mode")

LENGTHS = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 23, 40]


def copy_blocks(source: Engine, target: Engine, from_: Admitted, to: Admitted) -> None:
    """Move what the target lacks, as a connector would; the rest must not be needed."""
    assert source.kv_memory is not None
    assert target.kv_memory is not None
    first = to.num_cached_tokens // BLOCK_SIZE
    for src, dst in zip(from_.tables[0][first:], to.tables[0][first:], strict=True):
        target.kv_memory.blocks[dst] = source.kv_memory.blocks[src]


def admit_for_transfer(decode: Engine, prompt: list[int], run: Run, **fields: object) -> Admitted:
    decode.add(make_request("r", prompt, kv_source=KVSource.TRANSFER, **fields))
    drain(decode, run)
    assert decode.stats().num_receiving == 1
    return run.admitted("r")[-1]


def prefill(engine: Engine, prompt: list[int], **fields: object) -> tuple[Admitted, int]:
    run = generate(engine, make_request("r", prompt, hold_blocks=True, **fields))
    return run.admitted("r")[0], run.tokens("r")[0]


@pytest.mark.parametrize("hits", [(0, 0), (8, 0), (0, 8), (8, 20), (100, 100)])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_hand_off_gives_the_tokens_of_one_engine(length: int, hits: tuple[int, int]) -> None:
    prompt = [(7 * i) % 90 for i in range(length)]
    prefill_engine, decode_engine = make_engine(max_num_batched_tokens=16), make_engine()
    for engine, num_hit in zip((prefill_engine, decode_engine), hits, strict=True):
        if prompt[:num_hit]:
            generate(engine, make_request("warm", prompt[:num_hit], max_tokens=1))
    run = Run()
    to = admit_for_transfer(decode_engine, prompt, run)
    source, first_token = prefill(prefill_engine, prompt)
    copy_blocks(prefill_engine, decode_engine, source, to)
    decode_engine.complete_transfer("r", first_token)
    prefill_engine.release("r")
    drain(decode_engine, run)
    assert [first_token, *run.tokens("r")] == expected_tokens(prompt, 8)
    assert run.finish_reason("r") is FinishReason.LENGTH
    for engine in (prefill_engine, decode_engine):
        assert engine.stats().num_free_blocks == 64
        engine.check_integrity()


@pytest.mark.parametrize("length", LENGTHS)
def test_without_a_first_token_the_last_prompt_token_is_computed_again(length: int) -> None:
    prompt = list(range(length))
    prefill_engine, decode_engine, run = make_engine(), make_engine(), Run()
    to = admit_for_transfer(decode_engine, prompt, run)
    source, _ = prefill(prefill_engine, prompt)
    copy_blocks(prefill_engine, decode_engine, source, to)
    decode_engine.complete_transfer("r")
    drain(decode_engine, run)
    assert run.tokens("r") == expected_tokens(prompt, 8)


def test_received_blocks_become_visible_only_when_verified() -> None:
    prompt = list(range(20))
    prefill_engine, decode_engine, run = make_engine(), make_engine(), Run()
    to = admit_for_transfer(decode_engine, prompt, run)
    assert cached_hashes(decode_engine) == []
    source, first_token = prefill(prefill_engine, prompt)
    copy_blocks(prefill_engine, decode_engine, source, to)
    decode_engine.complete_transfer("r", first_token)
    assert cached_hashes(decode_engine) == cached_hashes(prefill_engine)
    assert len(cached_hashes(decode_engine)) == 5


@pytest.mark.parametrize("with_first_token", [True, False])
@pytest.mark.parametrize("num_hit", [0, 8])
def test_a_failed_transfer_is_computed_here_and_keeps_the_first_token(
    num_hit: int, with_first_token: bool
) -> None:
    prompt = list(range(20))
    engine, run = make_engine(max_num_batched_tokens=8), Run()
    if num_hit:
        generate(engine, make_request("warm", prompt[:num_hit], max_tokens=1))
    to = admit_for_transfer(engine, prompt, run)
    assert engine.kv_memory is not None
    engine.kv_memory.blocks[list(to.tables[0][num_hit // BLOCK_SIZE :])] = 0x7F  # half-received
    expected = expected_tokens(prompt, 8)
    engine.fail_transfer("r", expected[0] if with_first_token else None)
    drain(engine, run)
    assert run.tokens("r") == expected[with_first_token:]
    assert engine.stats().num_free_blocks == 64


def test_receiving_takes_a_place_but_no_budget_and_is_never_preempted() -> None:
    engine = make_engine(num_blocks=12, max_num_seqs=2)
    run = Run()
    to = admit_for_transfer(engine, list(range(20)), run)
    engine.add(make_request("long", range(4), max_tokens=30))
    engine.add(make_request("third", [1]))
    drain(engine, run)
    assert engine.stats().num_receiving == 1
    # It outgrew what the receiving sequence leaves, and waits.
    assert run.tokens("long") == expected_tokens(range(4), 25)
    assert run.events["third"] == []
    prefill_engine = make_engine()
    source, first_token = prefill(prefill_engine, list(range(20)))
    copy_blocks(prefill_engine, engine, source, to)
    engine.complete_transfer("r", first_token)
    drain(engine, run)
    assert [first_token, *run.tokens("r")] == expected_tokens(range(20), 8)
    assert run.tokens("long") == expected_tokens(range(4), 30)


def test_a_received_sequence_that_is_preempted_is_computed_here() -> None:
    engine, prefill_engine, run = make_engine(num_blocks=12), make_engine(), Run()
    engine.add(make_request("first", range(60, 76), max_tokens=30))
    drain(engine, run, until=lambda run: len(run.tokens("first")) == 1)
    engine.add(make_request("r", range(20), kv_source=KVSource.TRANSFER, max_tokens=20))
    drain(engine, run, until=lambda run: bool(run.admitted("r")))
    source, first_token = prefill(prefill_engine, list(range(20)))
    copy_blocks(prefill_engine, engine, source, run.admitted("r")[0])
    engine.complete_transfer("r", first_token)
    drain(engine, run)
    assert len(run.admitted("r")) > 1
    assert [first_token, *run.tokens("r")] == expected_tokens(range(20), 20)
    assert run.tokens("first") == expected_tokens(range(60, 76), 30)


def test_resumed_tokens_travel_with_the_prompt() -> None:
    expected = expected_tokens(range(10), 8)
    prefill_engine, decode_engine, run = make_engine(), make_engine(), Run()
    resumed = tuple(expected[:3])
    to = admit_for_transfer(decode_engine, list(range(10)), run, resumed_token_ids=resumed)
    assert len(to.tables[0]) == 4
    source, first_token = prefill(prefill_engine, list(range(10)), resumed_token_ids=resumed)
    copy_blocks(prefill_engine, decode_engine, source, to)
    decode_engine.complete_transfer("r", first_token)
    drain(decode_engine, run)
    assert [*resumed, first_token, *run.tokens("r")] == expected


def test_abort_while_receiving_frees_the_blocks() -> None:
    engine, run = make_engine(), Run()
    admit_for_transfer(engine, list(range(10)), run)
    engine.abort("r")
    assert engine.stats().num_free_blocks == 64
    with pytest.raises(RequestCancelledError):
        engine.complete_transfer("r", 1)
    with pytest.raises(RequestCancelledError):
        engine.fail_transfer("r")
    assert drain(engine, run).finish_reason("r") is FinishReason.ABORT


def test_a_transfer_ends_once_and_with_a_real_token() -> None:
    engine, run = make_engine(), Run()
    admit_for_transfer(engine, list(range(10)), run)
    with pytest.raises(InvalidRequestError):
        engine.complete_transfer("r", 97)
    assert engine.stats().num_receiving == 1
    engine.fail_transfer("r")
    with pytest.raises(InternalError, match="not receiving"):
        engine.complete_transfer("r", 1)


def test_a_first_token_that_ends_the_answer_ends_it() -> None:
    prompt = list(range(10))
    (first_token,) = expected_tokens(prompt, 1)
    engine, run = make_engine(), Run()
    admit_for_transfer(engine, prompt, run, eos_token_ids=(first_token,))
    engine.complete_transfer("r", first_token)
    assert engine.stats().num_free_blocks == 64
    drain(engine, run)
    assert run.new_tokens("r") == [
        NewTokens(
            request_id="r",
            token_ids=(),
            finish_reason=FinishReason.STOP,
            stop_token_id=first_token,
        )
    ]


def test_a_pinned_prefix_can_be_sent_to_a_peer() -> None:
    prompt = list(range(18))
    holder, decode, run = make_engine(), make_engine(), Run()
    generate(holder, make_request("a", prompt, max_tokens=1))
    pin, found = holder.pin_cached(cached_hashes(holder))
    to = admit_for_transfer(decode, prompt[:17], run)
    assert holder.kv_memory is not None
    assert decode.kv_memory is not None
    for src, dst in zip(found.blocks, to.tables[0], strict=False):
        decode.kv_memory.blocks[dst] = holder.kv_memory.blocks[src]
    holder.unpin(pin)
    holder.check_integrity()
    # The last block holds one token; recomputing it is what `complete_transfer` does anyway.
    decode.complete_transfer("r")
    assert drain(decode, run).tokens("r") == expected_tokens(prompt[:17], 8)
