"""Answers whose prefixes come from host memory and from disk."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shared.engine.memory.sizing import read_layout
from shared.engine.settings.engine import EngineConfig
from shared.kv.tier import BlockTier
from shared.model.loader import load_model
from tests.fakes.engine.offload import settle
from tests.parity.judge import BLOCK_SIZE, CHUNK, NUM_TOKENS, PROMPTS
from tests.parity.one_engine import ask, engine_of
from tests.parity.oracle import WrongAnswerError

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from tests.parity.cells import Cell
    from tests.parity.judge import Judge


def answer(cell: Cell, checkpoint: Path, judge: Judge, folder: Path) -> None:
    """Long prompts that push each other out of the pool, twice; once more after a restart."""
    loaded = load_model(checkpoint, **cell.settings)
    layout = read_layout(loaded, EngineConfig(block_size=BLOCK_SIZE))
    num_needed = layout.num_pool_blocks(len(PROMPTS[-1]) + NUM_TOKENS, CHUNK)
    settings = {
        # Besides those of the longest prompt there is room for a checkpoint of states.
        "num_blocks": num_needed * 3 // 2,
        "kv_offload_host_gib": 0.02,
        "kv_offload_disk_gib": 0.1,
        "kv_offload_disk_dir": folder / f"disk of {cell.key}",
        "kv_offload_always_load": True,
    }
    with contextlib.closing(engine_of(loaded, **settings)) as engine:
        _ask_each(engine, judge)
        _ask_each(engine, judge, source=BlockTier.HOST)
    with contextlib.closing(engine_of(loaded, **settings)) as engine:
        _ask_each(engine, judge, source=BlockTier.DISK)


def _ask_each(engine: Engine, judge: Judge, *, source: BlockTier | None = None) -> None:
    """Ask the prompts one after another; `source`: where some of their blocks must come from."""
    for number, prompt in enumerate(PROMPTS[-4:]):
        ask(engine, {str(number): prompt}, judge)
        settle(engine)
    if source is not None and not engine.stats().tiers[source].counters["hits"]:
        raise WrongAnswerError(f"no prefix came from the tier {source}")
