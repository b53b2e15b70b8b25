"""Packed hand-offs: the answers and the keys and values are those of plain ones."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from shared.connector.instrumented import Direction
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.worker.live_worker import live_worker
from tests.integration.worker.asking import assert_idle, kept_blocks, prompt_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    Modes = tuple[Literal["on", "off"], Literal["on", "off"]]

#: More than a step of 64 tokens; two chunks of the first group's blocks.
LENGTHS = (64, 233)
INBOUND = ("zmq", Direction.INBOUND)


@pytest.mark.parametrize("name", ["window", "latent", "state"])
async def test_answers_and_blocks_are_those_of_plain_hand_offs(name: str, tmp_path: Path) -> None:
    """Also between a worker that packs and one that does not."""
    write_random_checkpoint(tmp_path / name, SPECS[name])
    found = {}
    modes: tuple[Modes, ...] = (("off", "off"), ("on", "on"), ("on", "off"))
    for packing in modes if name == "window" else modes[:2]:
        async with AsyncExitStack() as stack:
            prefill, decode = [
                await stack.enter_async_context(
                    live_worker(
                        tmp_path / name,
                        f"w{number}",
                        connector="zmq",
                        runtime_dir=tmp_path,
                        packing=mode,
                        model_settings={"dtype": "bfloat16"},
                    )
                )
                for number, mode in enumerate(packing)
            ]
            answers, blocks = [], []
            for length in LENGTHS:
                prompt = prompt_of(length, seed=length)
                reply = await decode.ask(prompt, max_tokens=12, prefill=prefill)
                assert reply.timings.prefill_worker == "w0"
                answers.append(reply.token_ids)
                blocks.append(await kept_blocks(decode, prompt))
            found[packing] = answers, blocks
            counters = decode.parts.transfers
            assert counters.num_bytes[INBOUND] > 0
            share = counters.num_wire_bytes[INBOUND] / counters.num_bytes[INBOUND]
            assert share < 0.9 if packing == ("on", "on") else share == 1
            await assert_idle(prefill, decode)
    assert blocks[-1]
    assert all(each == found["off", "off"] for each in found.values())
