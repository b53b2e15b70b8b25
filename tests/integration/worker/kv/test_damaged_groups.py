"""Every group of a hand-off counts: without one of its pieces nothing of it is used."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from shared.engine.llm import LLM
from shared.errors import TransferFailure
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.checkpoints.group_kinds import CASES, SPECS
from tests.fakes.worker.damage import lose_a_piece, send_no_end_of
from tests.fakes.worker.live_worker import BLOCK_SIZE, live_pair
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shared.engine.sequence.sequence import Sequence as EngineSequence
    from shared.kv.group_rules import GroupKind


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("groups"), SPECS)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[Callable[[str], LLM]]:
    """By checkpoint: an engine that computes every prompt from its start."""
    made: list[LLM] = []

    @functools.cache
    def make(name: str) -> LLM:
        made.append(
            LLM(
                folder / name,
                dtype="float32",
                block_size=BLOCK_SIZE,
                num_blocks=256,
                enable_prefix_caching=False,
            )
        )
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.mark.parametrize("by_layers", ["off", "on"])
@pytest.mark.parametrize(("name", "kind"), CASES)
async def test_a_hand_off_that_lacks_the_end_of_a_group_is_not_used(
    name: str,
    kind: GroupKind,
    folder: Path,
    alone: Callable[[str], LLM],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_layers: str,
) -> None:
    """Whether it was lost on its way or never sent, the ticket does not complete.

    By layers, the piece is a slice of the first ones.
    """
    async with live_pair(folder / name, tmp_path, "zmq", by_layers=by_layers) as both:
        prefill, decode = both
        groups = decode.parts.layout.groups
        group = [each.kind for each in groups].index(kind)

        def last(seq: EngineSequence) -> int:
            num_blocks = -(-seq.num_prompt_tokens // BLOCK_SIZE)
            return seq.tables[group][num_blocks - 1]

        async def ask(length: int) -> str:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=12, prefill=prefill)
            assert reply.token_ids == expect(alone(name), prompt, 12)
            return reply.timings.prefill_worker

        assert await ask(117) == "w0"
        with monkeypatch.context() as patch:
            lost = lose_a_piece(patch, decode, last)
            assert await ask(118) == ""  # it was computed here
            assert len(lost) == 1
        (connector,) = decode.parts.endpoints.all_connectors
        assert connector.refusals[TransferFailure.INCOMPLETE] == 1
        with monkeypatch.context() as patch:
            send_no_end_of(patch, group)
            assert await ask(119) == ""
        assert await ask(120) == "w0"
        await assert_idle(prefill, decode)
