"""Layers that a prompt is told of are final in its blocks, long before the step is over."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.engine.pipeline import step_pipeline
from shared.engine.sequence.events import Computed, LayersComputed
from shared.kv.group_rules import GroupKind
from shared.model.loader import load_model
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.engine.engines import BLOCK_SIZE, Run, StepMode, make_engine, make_request

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine

#: Two steps of 64 tokens; the last block is not full.
PROMPT = [(7 * i) % 300 + 5 for i in range(90)]


def contents(engine: Engine, run: Run) -> list[np.ndarray]:
    """By group: the bytes of each layer in the blocks that the prompt's last window needs."""
    memory, layout, found = engine.kv_memory, engine.layout, []
    assert memory is not None
    [admitted] = run.admitted("long")
    for group, table in zip(layout.groups, admitted.tables, strict=True):
        used = layout.used_bytes(group)
        blocks = memory.blocks[list(table[-3:]), :used].reshape(3, group.num_layers, -1)
        found.append(blocks.copy())
    return found


@pytest.mark.parametrize("name", ["shared", "latent", "state"])
def test_what_is_said_to_be_final_stays_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_pipeline, "PART_MS", 0.0)
    write_random_checkpoint(tmp_path / name, SPECS[name])
    loaded = load_model(tmp_path / name, dtype="float32", attention_backend="native")
    run, told = Run(), []
    with closing(make_engine(loaded, StepMode.PARTED, num_blocks=400)) as engine:
        engine.add(make_request("long", PROMPT, hold_blocks=True, num_layer_notices=9))
        engine.add(make_request("plain", PROMPT[3:41], max_tokens=1))
        while not run.tokens("long"):
            for event in engine.step():
                run.events[event.request_id].append(event)
                if isinstance(event, LayersComputed):
                    assert event.request_id == "long"
                    told.append((event.num_layers, contents(engine, run)))
        last = contents(engine, run)
        steps = [event for event in run.events["long"] if isinstance(event, Computed)]
        assert [event.num_computed_tokens for event in steps][-1] == len(PROMPT)
        assert len(steps) > 1
        groups = engine.layout.groups
        # At least once between two layers, and never fewer than before.
        assert len(told) >= loaded.spec.num_layers - 1
        assert [num for num, _ in told] == sorted(num for num, _ in told)
        for num_layers, before in told:
            for group, number, then, now in zip(groups, num_layers, before, last, strict=False):
                assert group.kind is not GroupKind.STATE
                assert np.array_equal(then[:, :number], now[:, :number])
                # What comes behind is not there yet.
                assert number == group.num_layers or not np.array_equal(then, now)
        assert len(PROMPT) % BLOCK_SIZE
