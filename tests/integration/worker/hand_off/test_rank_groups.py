"""Workers of unequal groups of ranks: hand-offs and prefixes between them, whole and damaged.

The ranks are those of `scattered_ranks`: the memories, connectors and messages of a group, and one
engine. Of some groups, ranks from 1 on are remote: their connectors are served by an endpoint.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from services.prefill.publisher import Publisher
from shared.connector.group.outbound import GroupOutbound
from shared.connector.instrumented import Direction
from shared.connector.protocol.inbound import Inbound
from shared.errors import TransferFailure
from shared.kv.group_rules import GroupKind
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.ranks.arenas import own_heads
from tests.fakes.ranks.scattered import scattered_hand_offs
from tests.fakes.worker.live_worker import BLOCK_SIZE, LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, engines_in, eventually, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from shared.connector.protocol.frame import Frame
    from shared.engine.llm import LLM
    from shared.kv.layout import KVGroup, KVLayout

#: A checkpoint, its KV cache, sending and receiving ranks, and the connector.
CASES = [
    ("window", "auto", 2, 1, "zmq"),
    ("window", "int8", 3, 2, "shm"),
    ("latent", "auto", 1, 3, "shm"),
    ("state", "auto", 2, 4, "zmq"),
    ("chunk", "auto", 2, 2, "zmq_ipc"),
    ("window", "auto", 4, 2, "nixl"),
]
#: The same, of groups whose ranks from 1 on are remote.
REMOTE = [("window", "auto", 2, 1, "zmq"), ("state", "auto", 1, 2, "zmq")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(
        tmp_path_factory.mktemp("ranks"), {case[0]: SPECS[case[0]] for case in CASES}
    )


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Callable[[str, str], LLM]]:
    with engines_in(folder) as make:
        yield make


@asynccontextmanager
async def two_groups(
    model: Path,
    runtime_dir: Path,
    connector: str,
    sizes: tuple[int, int],
    block_sizes: tuple[int, int] = (BLOCK_SIZE, BLOCK_SIZE),
    **settings: Any,
) -> AsyncIterator[tuple[LiveWorker, LiveWorker]]:
    """Workers `w0` and `w1` of so many ranks."""
    async with AsyncExitStack() as stack:
        stack.enter_context(scattered_hand_offs())
        first, second = [
            await stack.enter_async_context(
                live_worker(
                    model,
                    f"w{number}",
                    connector=connector,
                    runtime_dir=runtime_dir,
                    num_ranks=size,
                    block_size=block_size,
                    **settings,
                )
            )
            for number, (size, block_size) in enumerate(zip(sizes, block_sizes, strict=True))
        ]
        yield first, second


def moved_bytes(layout: KVLayout, num_receivers: int, blocks: tuple[range, ...], end: int) -> int:
    """What a hand-off of these blocks of a sequence of `end` tokens moves: what receivers keep."""

    def copies(heads: int) -> int:
        return sum(len(own_heads(heads, num_receivers, rank)) for rank in range(num_receivers))

    def bytes_of(group: KVGroup, places: range) -> int:
        if group.kind is GroupKind.STATE:
            parts = [(s.num_rows, *part) for s in group.sections for part in s.parts]
            state = sum(rows * copies(heads) * size for rows, heads, size in parts)
            return len(places) * group.num_layers * state * 4
        row = group.head_dim * layout.element_bytes + (4 if layout.has_token_scales else 0)
        num_tokens = end - places.start * layout.block_size
        rows = group.num_layers * group.num_kinds * copies(group.num_kv_heads)
        return num_tokens * rows * row

    return sum(map(bytes_of, layout.groups, blocks))


@pytest.mark.parametrize(
    ("case", "is_remote"),
    [(case, False) for case in CASES] + [(case, True) for case in REMOTE],
)
async def test_groups_hand_over_and_fetch_like_one_process(
    case: tuple[str, str, int, int, str],
    is_remote: bool,
    folder: Path,
    alone: Callable[[str, str], LLM],
    tmp_path: Path,
) -> None:
    name, kv, senders, receivers, connector = case
    # Not imported here: that changes how this process logs.
    if connector == "nixl" and find_spec("nixl") is None:
        pytest.skip("the extra `nixl` is missing")
    oracle, sizes = alone(name, kv), (senders, receivers)
    # Over TCP each rank has a key of its own.
    settings = {"kv_cache_dtype": kv, "encrypt": True, "is_remote": is_remote}
    groups = two_groups(folder / name, tmp_path, connector, sizes, **settings)
    async with groups as pair:
        prefill, decode = pair
        layout = decode.parts.layout
        prompt = prompt_of(117, seed=1)
        reply = await decode.ask(prompt, max_tokens=20, prefill=prefill)
        assert reply.token_ids == expect(oracle, prompt, 20)
        assert (reply.timings.prefill_worker, reply.timings.connector) == ("w0", connector)
        first = moved_bytes(layout, receivers, layout.moved(0, 117), 117)
        assert reply.timings.transfer_bytes == first
        # The decode worker has the beginning of the second prompt, and the prefill worker all of
        # the first one: each side sends what only it has.
        again = [*prompt, *reply.token_ids, *prompt_of(40, seed=2)]
        hashes = decode.hashes(again)
        num_there, num_here = [await w.parts.engine.count_cached(hashes) for w in pair]
        assert 0 < num_there < num_here
        reply = await decode.ask(again, max_tokens=12, prefill=prefill)
        assert reply.token_ids == expect(oracle, again, 12)
        assert reply.timings.prefill_worker == "w0"
        second = moved_bytes(layout, receivers, layout.moved(num_here, len(again)), len(again))
        assert reply.timings.transfer_bytes == second
        fetched = layout.needed(num_there, num_here - num_there)
        back = moved_bytes(layout, senders, fetched, num_here * BLOCK_SIZE)
        assert reply.timings.prefix_fetch_bytes == back
        for worker, handed, fetch in (
            (decode, Direction.INBOUND, Direction.OUTBOUND),
            (prefill, Direction.OUTBOUND, Direction.INBOUND),
        ):
            counted = worker.parts.transfers.num_bytes
            assert counted[connector, handed] == first + second
            assert counted[connector, fetch] == back
        await check_prefix(pair, oracle, receivers)
        await assert_idle(prefill, decode)


#: Tokens of a prompt, whether a piece is lost (or damaged), workers to ask (times), which one did.
DAMAGES = [(70, False, 2, "w0"), (71, False, 1, ""), (72, True, 2, "w0"), (73, True, 1, "")]


async def check_prefix(pair: tuple[LiveWorker, LiveWorker], oracle: LLM, receivers: int) -> None:
    """The second worker fetches a prefix from the first."""
    holder, taker = pair
    layout, prompt = taker.parts.layout, prompt_of(6 * BLOCK_SIZE + 3, seed=3)
    await holder.ask(prompt)
    reply = await taker.ask(prompt, holder.source(6), max_tokens=12)
    assert reply.token_ids == expect(oracle, prompt, 12)
    assert reply.sources == (3, 0, 6 * BLOCK_SIZE)
    expected = moved_bytes(layout, receivers, layout.needed(0, 6), 6 * BLOCK_SIZE)
    assert reply.timings.prefix_fetch_bytes == expected


def damage(
    monkeypatch: pytest.MonkeyPatch, receiver: str, *, lose: bool = False, times: int = 1
) -> list[int]:
    """Flip a bit of what one rank receives, or lose it, in so many transfers."""
    done: list[int] = []
    accept = Inbound.accept

    async def damaged(self: Inbound, frame: Frame, sources: Any) -> None:
        if self.ticket.receiver.name != receiver or len(done) == times:
            await accept(self, frame, sources)
            return
        done.append(frame.num_blocks)
        if not lose:
            content = [np.array(part) for part in sources]
            content[0].reshape(-1)[5] ^= 4
            await accept(self, frame, content)

    monkeypatch.setattr(Inbound, "accept", damaged)
    return done


def lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let senders give an account that does not fit what they sent."""
    finish = GroupOutbound.finish

    async def wrong(self: GroupOutbound, timeout_s: float) -> int:
        return await finish(self, timeout_s) ^ 1

    monkeypatch.setattr(GroupOutbound, "finish", wrong)


@pytest.mark.parametrize("is_remote", [False, True])
async def test_damage_in_one_stream_is_damage_to_all(
    is_remote: bool,
    folder: Path,
    alone: Callable[[str, str], LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attempt is repeated, or the prompt is computed here; a prefix is computed."""
    oracle = alone("window", "auto")
    groups = two_groups(folder / "window", tmp_path, "zmq", (2, 4), is_remote=is_remote)
    async with groups as (prefill, decode):

        async def ask(length: int, workers: list[LiveWorker]) -> str:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=12, prefill=workers)
            assert reply.token_ids == expect(oracle, prompt, 12)
            return reply.timings.prefill_worker

        for length, lose, num_workers, used in DAMAGES:
            with monkeypatch.context() as patch:
                damaged = damage(patch, "w1.2", lose=lose)
                assert await ask(length, [prefill] * num_workers) == used
                assert len(damaged) == 1
        failed = [
            decode.parts.transfers.num_transfers["zmq", Direction.INBOUND, reason]
            for reason in (TransferFailure.CORRUPT, TransferFailure.INCOMPLETE)
        ]
        assert failed == [2, 2]
        # Six attempts, each with a transfer per pair of ranks: of two with four.
        assert decode.parts.transfers.num_transfers.total() == 6 * 4
        with monkeypatch.context() as patch:
            lie(patch)
            assert await ask(74, [prefill]) == ""
        refused = decode.parts.metrics.get_sample_value(
            "baton_kv_transfer_refusals_total", {"connector": "zmq", "reason": "corrupt"}
        )
        assert refused == 2
        prompt = prompt_of(6 * BLOCK_SIZE + 3, seed=4)
        await prefill.ask(prompt)
        with monkeypatch.context() as patch:
            damaged = damage(patch, "w1.3")
            reply = await decode.ask(prompt, prefill.source(6))
            assert reply.token_ids == expect(oracle, prompt)
            assert reply.sources == (len(prompt), 0, 0)
            assert len(damaged) == 1
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_cancelled_request_ends_all_transfers(
    is_remote: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Publisher, "advance", lambda *_: None)
    groups = two_groups(folder / "window", tmp_path, "shm", (2, 3), is_remote=is_remote)
    async with groups as (prefill, decode):
        asking = asyncio.create_task(decode.ask(prompt_of(70, seed=1), prefill=prefill))

        async def is_open() -> bool:
            loads = await asyncio.gather(prefill.load(), decode.load())
            return all(load.num_open_transfers >= 3 for load in loads)

        await eventually(is_open)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await assert_idle(prefill, decode)


async def test_a_sender_that_forgot_a_peer_meets_it_again(
    folder: Path, alone: Callable[[str, str], LLM], tmp_path: Path
) -> None:
    """And to ask it for hidden states, which move between single ranks alone, is no use."""
    async with two_groups(folder / "window", tmp_path, "shm", (2, 1)) as (prefill, decode):
        prompt = prompt_of(40, seed=1)
        expected = expect(alone("window", "auto"), prompt, 4)
        used = []
        for _ in range(3):
            reply = await decode.ask(prompt, max_tokens=4, prefill=prefill)
            assert reply.token_ids == expected
            used.append(reply.timings.prefill_worker)
            await decode.forget()
            if len(used) == 1:
                prefill.parts.recipients._met.clear()
        assert used == ["w0", "", "w0"]
        peer = await decode.parts.peers.meet(prefill.parts.worker, prefill.address)
        assert peer.hand_off is not None
        assert not peer.sends_states
        await assert_idle(prefill, decode)
