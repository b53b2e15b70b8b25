"""Workers of two block sizes, one a multiple of the other, hand over and fetch no prefixes."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from shared.connector.instrumented import Direction
from shared.errors import IncompatiblePeerError
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.integration.worker.asking import assert_idle, engines_in, expect, prompt_of
from tests.integration.worker.hand_off.test_rank_groups import moved_bytes, two_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.llm import LLM
    from shared.kv.layout import KVLayout
    from tests.fakes.worker.live_worker import LiveWorker

#: A checkpoint, its KV cache, block sizes of sender and receiver, their ranks, and the connector.
CASES = [
    ("window", "auto", (8, 16), (1, 1), "zmq"),
    ("window", "int8", (16, 8), (1, 1), "shm"),
    ("latent", "auto", (8, 32), (1, 1), "shm"),
    ("state", "auto", (32, 16), (1, 1), "zmq"),
    ("state", "int8", (16, 32), (2, 3), "shm"),
    ("chunk", "fp8", (16, 4), (2, 1), "zmq_ipc"),
    ("window", "auto", (4, 16), (1, 2), "nixl"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(
        tmp_path_factory.mktemp("sizes"), {case[0]: SPECS[case[0]] for case in CASES}
    )


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Callable[[str, str], LLM]]:
    with engines_in(folder) as make:
        yield make


def bytes_behind(layout: KVLayout, small: int, num_receivers: int, first: int, end: int) -> int:
    """What moves of a prompt of `end` tokens to a worker that has the `first` tokens."""
    units = replace(layout, block_size=small)
    return moved_bytes(units, num_receivers, units.moved(first // small, end), end)


@pytest.mark.parametrize("case", CASES)
async def test_blocks_of_another_size_are_handed_over_like_ones_own(
    case: tuple[str, str, tuple[int, int], tuple[int, int], str],
    folder: Path,
    alone: Callable[[str, str], LLM],
    tmp_path: Path,
) -> None:
    name, kv, block_sizes, ranks, connector = case
    # Not imported here: that changes how this process logs.
    if connector == "nixl" and find_spec("nixl") is None:
        pytest.skip("the extra `nixl` is missing")
    oracle, settings = alone(name, kv), {"kv_cache_dtype": kv, "num_blocks": 256}
    groups = two_groups(folder / name, tmp_path, connector, ranks, block_sizes, **settings)
    async with groups as (prefill, decode):
        layout, small = decode.parts.layout, min(block_sizes)
        assert (prefill.parts.layout.block_size, layout.block_size) == block_sizes
        prompt = prompt_of(117, seed=1)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, prompt, 20)
        assert (reply.timings.prefill_worker, reply.timings.connector) == ("w0", connector)
        first = bytes_behind(layout, small, ranks[1], 0, 117)
        assert reply.timings.transfer_bytes == first
        # The decode worker has the answer, which the prefill worker has to compute once more.
        again = [*prompt, *reply.token_ids, *prompt_of(40, seed=2)]
        num_here = await decode.parts.engine.count_cached(decode.hashes(again))
        assert num_here * block_sizes[1] >= 117
        reply = await decode.ask(again, max_tokens=12, prefill=prefill)
        assert reply.token_ids == expect(oracle, again, 12)
        assert reply.timings.prefill_worker == "w0"
        num_tokens = num_here * block_sizes[1]
        second = bytes_behind(layout, small, ranks[1], num_tokens, len(again))
        assert reply.timings.transfer_bytes == second
        assert reply.timings.prefix_source == ""
        counted = prefill.parts.transfers.num_bytes
        assert counted[connector, Direction.OUTBOUND] == first + second
        assert counted[connector, Direction.INBOUND] == 0
        assert prefill.metric("prefix_fetch_declined", connector=connector) == 0
        # Nor is a prefix fetched that a router of other workers believes in.
        other = prompt_of(4 * max(block_sizes) + 1, seed=5)
        await decode.ask(other)
        reply = await prefill.ask(other, decode.source(4), max_tokens=4)
        assert reply.token_ids == expect(oracle, other, 4)
        assert reply.sources == (len(other), 0, 0)
        assert prefill.metric("prefix_fetch_declined", connector=connector) == 1
        if layout.can_split:
            await check_split(prefill, decode, oracle)
        await assert_idle(prefill, decode)


async def check_split(prefill: LiveWorker, decode: LiveWorker, oracle: LLM) -> None:
    """A beginning of whole blocks of the decode worker is computed elsewhere, the rest here."""
    size = decode.parts.layout.block_size
    prompt = prompt_of(11 * size + 3, seed=3)
    reply = await decode.ask(
        prompt, max_tokens=12, prefill=prefill, num_handed_tokens=5 * size + size // 2
    )
    assert reply.token_ids == expect(oracle, prompt, 12)
    assert (reply.timings.prefill_worker, reply.timings.prefill_place) == ("w0", "split")
    sources = reply.usage.sources
    assert (sources.transferred, sources.computed) == (5 * size, len(prompt) - 5 * size)


async def test_a_block_that_begins_before_the_window_is_not_found_again(
    folder: Path, alone: Callable[[str, str], LLM], tmp_path: Path
) -> None:
    """Tokens at its beginning were not moved, and the window of a shorter prefix reaches them."""
    oracle = alone("window", "auto")
    # What two ranks did not receive is wiped out, so that who reads it gets other tokens.
    async with two_groups(folder / "window", tmp_path, "shm", (1, 2), (4, 16)) as pair:
        prefill, decode = pair
        for length in (100, 103, 104, 99):
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, prefill=prefill)
            assert reply.timings.prefill_worker == "w0"
            # Behind six blocks a token reads from token 57 on, in the fourth block.
            other = [*prompt[:96], *prompt_of(7, seed=length)]
            reply = await decode.ask(other, max_tokens=20)
            assert reply.token_ids == expect(oracle, other, 20)
            assert reply.usage.cached_tokens == 0
        # What the answer makes full can be found.
        prompt = prompt_of(100, seed=1)
        reply = await decode.ask(prompt, max_tokens=50, prefill=prefill)
        again = [*prompt, *reply.token_ids[:-1], *prompt_of(9, seed=1)]
        reply = await decode.ask(again, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, again, 20)
        assert reply.usage.cached_tokens == 144
        await assert_idle(prefill, decode)


async def test_sizes_of_which_neither_is_a_multiple_are_refused_by_name(
    folder: Path, alone: Callable[[str, str], LLM], tmp_path: Path
) -> None:
    async with two_groups(folder / "window", tmp_path, "shm", (1, 1), (16, 24)) as pair:
        prefill, decode = pair
        with pytest.raises(IncompatiblePeerError, match=r"layout\.block_size"):
            await decode.parts.peers.meet(prefill.parts.worker, prefill.address)
        prompt = prompt_of(60, seed=4)
        reply = await decode.ask(prompt, prefill=prefill)
        assert reply.token_ids == expect(alone("window", "auto"), prompt)
        assert reply.timings.prefill_worker == ""
        await assert_idle(prefill, decode)
