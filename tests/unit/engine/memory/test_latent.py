"""Latent attention in an engine: every feature on rows answers as transformers' module does."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from shared.kv.group_rules import GroupKind
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.latent import LATENT, ROW
from tests.fakes.engine.engines import BLOCK_SIZE, StepMode, make_engine
from tests.unit.engine.memory.test_kv_groups import run

if TYPE_CHECKING:
    from pathlib import Path

HEADS = ("eagle", "eagle3", "medusa")
#: Settings, and what they must have counted.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "prefix_cache_hits"),
    "small steps": ({"max_num_batched_tokens": 9}, "prefix_cache_hits"),
    "short of blocks": ({"num_blocks": 14}, "num_preemptions"),
    "offload": (
        {"num_blocks": 14, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    **{
        method: ({"method": method}, "spec_decode_num_draft_tokens")
        for method in ("draft_model", *HEADS)
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and what guesses for it."""
    path = tmp_path_factory.mktemp("latent")
    write_random_checkpoint(path / "target", LATENT)
    for method in HEADS:
        write_random_head(path / method, path / "target", HeadSpec(method=method))
    return path


def answer(folder: Path, counter: str | None = None, **settings: Any) -> dict[str, list[int]]:
    """The answers of an engine; `counter`: what it must have counted."""
    impl = settings.pop("model_impl", "torch")
    if method := settings.pop("method", None):
        draft = folder / ("target" if method == "draft_model" else method)
        own = {"method": method, "model": str(draft)}
        own |= {"num_speculative_tokens": 3, "adaptive": False}
        settings["speculative_config"] = msgspec.json.encode(own).decode()
    model = load_model(folder / "target", model_impl=impl)
    engine = make_engine(model, StepMode.OVERLAPPED, **({"num_blocks": 64} | settings))
    with closing(engine):
        answers = run(engine)
        assert counter is None or engine.stats().counters[counter]
        return answers


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    """What transformers' module answers, over keys and values."""
    torch.set_num_threads(1)
    return answer(folder, model_impl="transformers")


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_those_of_the_module(
    name: str, executor: str, folder: Path, expected: dict[str, list[int]]
) -> None:
    settings, counter = SETTINGS[name]
    assert answer(folder, counter, model_impl=executor, **settings) == expected


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_rows_in_8_bits_do_not_depend_on_steps_and_hits(
    kv_dtype: str, executor: str, folder: Path
) -> None:
    own = {"kv_cache_dtype": kv_dtype, "model_impl": executor}
    found = [
        answer(folder, **own, enable_prefix_caching=hits, **settings)
        for hits, settings in ((True, {}), (True, {"max_num_batched_tokens": 9}), (False, {}))
    ]
    assert found[0] == found[1] == found[2]


def test_a_block_has_one_row_per_token_and_layer(folder: Path) -> None:
    model = load_model(folder / "target")
    for dtype, row_bytes in (("auto", 4 * ROW), ("int8", ROW + 4)):
        engine = make_engine(model, kv_cache_dtype=dtype)
        (group,) = engine.layout.groups
        assert group.kind is GroupKind.LATENT
        assert engine.layout.block_bytes == LATENT.num_layers * BLOCK_SIZE * row_bytes
        engine.close()
