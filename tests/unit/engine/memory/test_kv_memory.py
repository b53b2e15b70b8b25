"""Memory of a model of the shape of Gemma 3: windows in five layers of six."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import make_engine, make_request
from tests.fakes.engine.kv_groups import all_tokens_kept
from tests.fakes.families.cases import FULL, SLIDING

if TYPE_CHECKING:
    from pathlib import Path

NUM_LAYERS, WINDOW = 6, 512
SPEC = CheckpointSpec(
    architecture="gemma3_text",
    num_layers=NUM_LAYERS,
    hidden_size=32,
    num_heads=1,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=32,
    max_position_embeddings=40_000,
    tie_word_embeddings=True,
    extra={"sliding_window": WINDOW, "layer_types": [*[SLIDING] * 5, FULL]},
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_long_sequence_takes_the_full_layers_and_windows(tmp_path: Path) -> None:
    """At most a tenth more than the KV of all tokens in full layers, and of windows."""
    write_random_checkpoint(tmp_path, SPEC)
    num_tokens, block_size = 32_768, 16
    engine = make_engine(
        load_model(tmp_path), block_size=block_size, num_blocks=3000, max_num_batched_tokens=512
    )
    layout = engine.layout
    layer_bytes = layout.block_bytes // layout.groups[0].num_layers // block_size
    assert layout.num_groups == NUM_LAYERS
    prompt = [3 + place * 7 % 300 for place in range(num_tokens)]
    engine.add(make_request("long", prompt, max_tokens=8, ignore_eos=True))
    most = 0
    while engine.has_work():
        engine.step()
        most = max(most, engine.num_blocks - engine._pool.num_free)
    read_bytes = (num_tokens + 5 * WINDOW) * layer_bytes
    assert read_bytes <= most * layout.block_bytes <= 1.1 * read_bytes
    # What a hand-off moves.
    moved = sum(len(blocks) for blocks in layout.moved(0, num_tokens))
    assert moved == num_tokens // block_size + 5 * (WINDOW // block_size)
    assert engine._pool.num_free == engine.num_blocks
    engine.close()


def test_three_times_the_sequences_fit_into_the_same_memory(tmp_path: Path) -> None:
    """A sixteenth of the window, of the sequences and of the steps: the same shares."""
    window = WINDOW // 16
    extra = {**SPEC.extra, "sliding_window": window}
    write_random_checkpoint(tmp_path, replace(SPEC, extra=extra))
    length, num_tokens, together = 512, 384, []
    for keep in (nullcontext(), all_tokens_kept()):
        with keep:
            model = load_model(tmp_path)
            per_layer = NUM_LAYERS if isinstance(keep, nullcontext) else 1
            engine = make_engine(
                model,
                block_size=4,
                num_blocks=(length + num_tokens) * per_layer,
                max_num_batched_tokens=32,
                max_num_seqs=32,
            )
        for number in range(10):
            prompt = [3 + number, *[3 + place * 7 % 300 for place in range(length - 1)]]
            engine.add(make_request(f"{number}", prompt, max_tokens=num_tokens, ignore_eos=True))
        most = 0
        while engine.has_work():
            engine.step()
            most = max(most, engine.stats().num_running)
        together.append(most)
        engine.close()
    assert together[0] >= 3 * together[1]
