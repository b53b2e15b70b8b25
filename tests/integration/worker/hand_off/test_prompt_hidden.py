"""Hidden states come beside the KV if they can, and whatever becomes of them costs no token."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from services.decode.hidden import HiddenInbox
from services.prefill.hidden_sender import HiddenSender
from services.prefill.publisher import Publisher
from shared.connector.instrumented import OK, Direction
from shared.errors import TransferError, TransferFailure
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from tests.fakes.worker.live_worker import LiveWorker, live_worker
from tests.integration.worker.asking import assert_idle, expect, prompt_of
from tests.unit.model.checkpoints import edit_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.engine.llm import LLM

#: No longer than a step of either worker, so that guesses begin at once.
PROMPT = prompt_of(60, seed=3)


@pytest.fixture(scope="module")
def head(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads") / "eagle3"
    write_random_head(path, checkpoint, HeadSpec(method="eagle3"))
    edit_json(path / "config.json", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return path


@asynccontextmanager
async def two_workers(
    checkpoint: Path,
    head: Path,
    runtime_dir: Path,
    *,
    connector: str = "shm",
    hand_off: str = "transfer",
    num_blocks: int = 128,
) -> AsyncIterator[tuple[LiveWorker, LiveWorker]]:
    """One that computes prompts, with so many blocks, and one with a head."""
    settings = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    settings |= {"adaptive": False, "hand_off": hand_off}
    async with (
        live_worker(
            checkpoint, "p", connector=connector, runtime_dir=runtime_dir, num_blocks=num_blocks
        ) as prefill,
        live_worker(
            checkpoint,
            "d",
            connector=connector,
            runtime_dir=runtime_dir,
            speculative_config=json.dumps(settings),
            stall_s=2.0,
        ) as decode,
    ):
        yield prefill, decode


def outcomes(worker: LiveWorker) -> dict[str, float]:
    names = ("received", "refused", "late", "failed")
    counted = {name: worker.metric("hand_off_states", outcome=name) for name in names}
    return {name: num for name, num in counted.items() if num}


@pytest.mark.parametrize("connector", ["shm", "zmq", "nixl"])
async def test_a_head_guesses_as_if_the_prompt_were_computed_here(
    connector: str, checkpoint: Path, head: Path, oracle: LLM, tmp_path: Path
) -> None:
    # It is not imported here: that changes the logging of the process.
    if connector == "nixl" and find_spec("nixl") is None:
        pytest.skip("the extra `nixl` is not installed")
    async with two_workers(checkpoint, head, tmp_path, connector=connector) as (prefill, decode):
        here = await decode.ask(PROMPT, max_tokens=20)
        await decode.forget()
        there = await decode.ask(PROMPT, max_tokens=20, prefill=prefill)
        assert there.token_ids == here.token_ids == expect(oracle, PROMPT, 20)
        assert there.timings.prefill_worker == "p"
        assert here.usage.num_draft_tokens > 0
        for field in ("num_draft_tokens", "num_accepted_tokens"):
            assert getattr(there.usage, field) == getattr(here.usage, field)
        assert outcomes(decode) == {"received": 1}
        await assert_idle(prefill, decode)
        # Of the KV and of the states, and both ends think so.
        assert set(prefill.parts.transfers.num_transfers) == {(connector, Direction.OUTBOUND, OK)}
        assert set(decode.parts.transfers.num_transfers) == {(connector, Direction.INBOUND, OK)}
        assert decode.parts.transfers.num_transfers[connector, Direction.INBOUND, OK] == 2


async def test_a_worker_of_an_older_version_is_not_asked(
    checkpoint: Path, head: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with two_workers(checkpoint, head, tmp_path) as (prefill, decode):
        prefill.parts.peer_info.protocol.minor = 2
        reply = await decode.ask(PROMPT, prefill=prefill)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert outcomes(decode) == {}
        await assert_idle(prefill, decode)


async def test_a_worker_without_room_sends_none(
    checkpoint: Path, head: Path, oracle: LLM, tmp_path: Path
) -> None:
    """Its pool holds the prompt's KV, and nothing else."""
    async with two_workers(checkpoint, head, tmp_path, num_blocks=4) as (prefill, decode):
        reply = await decode.ask(PROMPT, prefill=prefill)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert outcomes(decode) == {"refused": 1}
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("hand_off", ["none", "auto"])
async def test_states_are_only_asked_for_if_that_is_wanted(
    hand_off: str, checkpoint: Path, head: Path, oracle: LLM, tmp_path: Path
) -> None:
    """With `auto`, nobody waits 0.1 times the few milliseconds that this prompt may take."""
    async with two_workers(checkpoint, head, tmp_path, hand_off=hand_off) as (prefill, decode):
        short = PROMPT[:20]
        reply = await decode.ask(short, prefill=prefill)
        assert reply.token_ids == expect(oracle, short)
        assert outcomes(decode) == {}
        await assert_idle(prefill, decode)


@pytest.mark.parametrize("how", ["breaks off", "hangs"])
async def test_states_that_do_not_come_are_done_without(
    how: str,
    checkpoint: Path,
    head: Path,
    oracle: LLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def finish(self: HiddenSender, timeout_s: float) -> None:
        if how == "hangs":
            await asyncio.sleep(timeout_s)
        await self.close()
        raise TransferError(TransferFailure.ABORTED, "as the test has it")

    monkeypatch.setattr(HiddenSender, "finish", finish)
    async with two_workers(checkpoint, head, tmp_path) as (prefill, decode):
        reply = await decode.ask(PROMPT, prefill=prefill)
        assert reply.token_ids == expect(oracle, PROMPT)
        assert outcomes(decode) == {"late" if how == "hangs" else "failed": 1}
        await assert_idle(prefill, decode)


async def test_a_caller_that_leaves_while_states_are_closed_leaves_no_transfer_open(
    checkpoint: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, close = asyncio.Event(), HiddenInbox.close

    async def slow_close(self: HiddenInbox) -> None:
        closing.set()
        try:
            await asyncio.sleep(30)
        finally:
            await close(self)

    async def finish(self: Publisher, timeout_s: float) -> int:
        await asyncio.sleep(timeout_s)
        raise TransferError(TransferFailure.TIMEOUT, "as the test has it")

    monkeypatch.setattr(HiddenInbox, "close", slow_close)
    # The KV is not complete either: the worker is given up.
    monkeypatch.setattr(Publisher, "advance", lambda *_: None)
    monkeypatch.setattr(Publisher, "finish", finish)
    async with two_workers(checkpoint, head, tmp_path) as (prefill, decode):
        asking = asyncio.create_task(decode.ask(PROMPT, prefill=prefill))
        await asyncio.wait_for(closing.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await assert_idle(prefill, decode)
