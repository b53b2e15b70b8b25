"""What the models of a comparison are written as, so that every system reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers import models
from benchmarks.peers.formats import model_path
from benchmarks.peers.workers.baton import BatonEngine
from benchmarks.peers.workers.baton_vectors import load
from benchmarks.peers.workers.wire import WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

SMALLER = {
    "num_layers": 2,
    "hidden_size": 48,
    "intermediate_size": 96,
    "vocab_size": 512,
    "weight_std": 0.3,
}


@pytest.fixture(autouse=True)
def _small_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_BENCH_HOME", str(tmp_path))
    for name in ("medium", "small", "bert"):
        heads = 3 if name == "bert" else 4
        spec = replace(
            models.MODELS[name], **SMALLER, num_heads=heads, num_kv_heads=min(heads, 2), head_dim=16
        )
        monkeypatch.setitem(models.MODELS, name, spec)


def options(name: str) -> WorkerOptions:
    return WorkerOptions(
        model=str(model_path(name)),
        threads=1,
        dtype="float32",
        quantization=None,
        max_model_len=min(512, models.max_model_len(name)),
        kv_cache_bytes=1 << 24,
        max_num_seqs=8,
        adapters=tuple(map(str, models.adapter_folders(name))),
    )


def test_adapters_change_what_is_answered() -> None:
    engine = BatonEngine(options("medium-adapters"))
    prompt = [301, 302, 303]
    answers = [engine.one(prompt, 40, (place,)).token_ids for place in (None, 0, 1, 2, 3)]
    assert len({tuple(answer) for answer in answers}) > 1
    assert engine.many([prompt] * 4, 3, (0, 1, 2, 3)).num_tokens == 12


@pytest.mark.parametrize("name", models.EMBEDDERS)
def test_embedders_make_vectors(name: str) -> None:
    vectors = load(options(name)).embed([[301, 302, 303], [304]])
    assert len(vectors.beginning) == 8
    assert 0 < sum(number**2 for number in vectors.beginning) < 1
