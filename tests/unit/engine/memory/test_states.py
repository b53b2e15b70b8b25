"""Layers that keep a state: an engine answers as one that computes every prompt from its start."""

from __future__ import annotations

import functools
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ConfigError
from shared.model.decoder.causal_lm import CausalLM
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints.folder import write_checkpoints
from tests.fakes.engine.engines import BLOCK_SIZE, StepMode, drain, make_engine, make_request
from tests.fakes.families.cases import FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from shared.engine.engine import Engine

LINEAR = "linear_attention"
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": [LINEAR, LINEAR, FULL, LINEAR, FULL],
}
#: The state of a layer is larger than a block of KV, and smaller, and there is no KV at all.
CHECKPOINTS = {
    "delta": CheckpointSpec(
        architecture="qwen3_5_text", num_layers=5, vocab_size=321, head_dim=10, extra=DELTA
    ),
    "alone": CheckpointSpec(
        architecture="mamba2",
        num_layers=3,
        vocab_size=321,
        extra={"head_dim": 16, "num_heads": 8, "n_groups": 2, "state_size": 6},
    ),
    "conv": CheckpointSpec(
        architecture="lfm2",
        num_layers=5,
        vocab_size=321,
        extra={"layer_types": ["conv", "conv", FULL, "conv", FULL], "block_multiple_of": 8},
    ),
}
PROMPTS = [[(7 * i + n // 3) % 200 + 3 for i in range(9 + 14 * (n % 3))] for n in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoints(tmp_path_factory.mktemp("states"), CHECKPOINTS)


def run(engine: Engine, names: Iterable[str] = "ab") -> dict[str, list[int]]:
    """Prompts with common beginnings, twice, the second time behind the first one's answers."""
    tokens: dict[str, list[int]] = {}
    for turn in names:
        for number, prompt in enumerate(PROMPTS):
            before = [] if turn == "a" else [*tokens[f"a {number}"], 5, 6, 7]
            request = make_request(
                f"{turn} {number}", [*prompt, *before], max_tokens=20, ignore_eos=True
            )
            engine.add(request)
        done = drain(engine)
        engine.check_integrity()
        tokens |= {f"{turn} {n}": done.tokens(f"{turn} {n}") for n in range(len(PROMPTS))}
    if engine.cached.offload is not None:
        engine.cached.offload.settle()
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return tokens


@pytest.fixture(scope="module")
def expected(folder: Path) -> Callable[[str, str], dict[str, list[int]]]:
    """By checkpoint and executor: each answer computed alone, in one step per prompt."""

    @functools.cache
    def compute(checkpoint: str, backend: str) -> dict[str, list[int]]:
        model = load_model(folder / checkpoint, attention_backend=backend)
        engine = make_engine(model, num_blocks=200, enable_prefix_caching=False, max_num_seqs=1)
        found = run(engine)
        engine.close()
        return found

    return compute


#: More drafts than a block has tokens.
NGRAM = {"method": "ngram", "num_speculative_tokens": 6, "adaptive": False}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "prefix_cache_hits"),
    "small steps": ({"max_num_batched_tokens": 11}, "prefix_cache_hits"),
    "short of blocks": ({"num_blocks": 50}, "num_preemptions"),
    "offload": (
        {"num_blocks": 50, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    "ngram": (
        {"speculative_config": json.dumps(NGRAM)},
        "spec_decode_num_draft_tokens",
    ),
}


#: Two blocks do for a sequence without KV; and what it answers repeats nothing to be guessed.
NOT_SEEN = {("alone", "short of blocks"), ("alone", "offload"), ("alone", "ngram")}


def cases() -> list[tuple[str, str, str, StepMode]]:
    """Every setting of every checkpoint, half of them on PyTorch too: all pairs of the four."""
    modes = (StepMode.SYNCHRONOUS, StepMode.OVERLAPPED)
    found = []
    for row, checkpoint in enumerate(CHECKPOINTS):
        for column, name in enumerate(SETTINGS):
            found.append((checkpoint, name, "native", modes[(row + column) % 2]))
            if (row + column) % 3 != 1:
                found.append((checkpoint, name, "torch", modes[(row + column + 1) % 2]))
    return found


@pytest.mark.parametrize(("checkpoint", "name", "backend", "mode"), cases())
def test_tokens_are_those_of_prompts_computed_alone(
    folder: Path,
    expected: Callable[[str, str], dict[str, list[int]]],
    checkpoint: str,
    name: str,
    backend: str,
    mode: StepMode,
) -> None:
    settings, counter = SETTINGS[name]
    model = load_model(folder / checkpoint, attention_backend=backend)
    with closing(make_engine(model, mode, **({"num_blocks": 200} | settings))) as engine:
        assert run(engine) == expected(checkpoint, backend)
        assert engine.stats().counters[counter] > 0 or (checkpoint, name) in NOT_SEEN


def test_padding_of_recorded_steps_changes_no_state(
    folder: Path,
    expected: Callable[[str, str], dict[str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps that PyTorch computes, called again instead of replayed."""
    monkeypatch.setattr(CausalLM, "is_recordable", True)
    model = load_model(folder / "delta", attention_backend="torch")
    engine = make_engine(model, StepMode.RECORDED, num_blocks=200, cuda_graph_sizes=(8,))
    assert run(engine) == expected("delta", "torch")
    engine.close()


@pytest.mark.parametrize(
    ("method", "backend"),
    [
        *((method, "native") for method in ("draft_model", "eagle", "eagle3", "medusa")),
        ("eagle3", "torch"),
    ],
)
def test_rejected_drafts_change_no_state(
    folder: Path,
    expected: Callable[[str, str], dict[str, list[int]]],
    method: str,
    backend: str,
    tmp_path: Path,
) -> None:
    if method == "draft_model":
        write_random_checkpoint(tmp_path, CheckpointSpec(num_layers=1, vocab_size=321))
    else:
        write_random_head(tmp_path, folder / "delta", HeadSpec(method=method))
    own = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 4, "adaptive": False}
    model = load_model(folder / "delta", attention_backend=backend)
    engine = make_engine(
        model, StepMode.OVERLAPPED, num_blocks=200, speculative_config=json.dumps(own)
    )
    assert run(engine) == expected("delta", backend)
    counters = engine.stats().counters
    assert counters["spec_decode_num_draft_tokens"] > counters["spec_decode_num_accepted_tokens"]
    engine.close()


def test_a_draft_with_states_is_refused_by_name(folder: Path) -> None:
    own = {"method": "draft_model", "model": str(folder / "conv"), "num_speculative_tokens": 4}
    with pytest.raises(ConfigError, match="draft Lfm2ForCausalLM keeps states"):
        make_engine(load_model(folder / "delta"), speculative_config=json.dumps(own))


def test_a_prefix_is_found_where_a_checkpoint_is(folder: Path) -> None:
    engine = make_engine(load_model(folder / "conv"), num_blocks=200, max_num_batched_tokens=16)
    shared = list(range(3, 33))

    def num_cached(name: str, rest: int) -> int:
        engine.add(make_request(name, [*shared, *range(rest, rest + 9)], max_tokens=2))
        return drain(engine).admitted(name)[0].num_cached_tokens

    assert num_cached("first", 100) == 0
    assert num_cached("same", 100) == 36  # the last full block of 39 tokens
    # No prompt had ended where this one parts from them: it leaves a checkpoint there.
    assert num_cached("parts", 150) == 0
    assert num_cached("parts again", 200) == 28
    engine.close()


@pytest.mark.parametrize("hold", [False, True])
def test_states_take_as_many_blocks_however_long_a_sequence_is(folder: Path, hold: bool) -> None:
    engine = make_engine(
        load_model(folder / "delta"), num_blocks=200, max_num_batched_tokens=16, max_num_seqs=1
    )
    num_states = engine.layout.num_groups - engine.layout.num_token_groups
    assert num_states == 3
    engine.add(make_request("long", range(3, 203), max_tokens=40, hold_blocks=hold))
    most = 0
    while engine.has_work():
        engine.step()
        engine.check_integrity()
        most = max(most, engine.num_blocks - engine._pool.num_free)
    # Its own blocks, and a checkpoint that the next step still reads.
    assert most <= 240 // BLOCK_SIZE + 2 * num_states
    if hold:
        engine.release("long")
    assert engine._pool.num_free == engine.num_blocks
    engine.close()
