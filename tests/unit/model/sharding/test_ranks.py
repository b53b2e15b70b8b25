"""Ranks, as threads, answer as one process does, and read and keep only their parts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from structlog.testing import capture_logs

from shared.engine.memory.sizing import own_layout, read_layout
from shared.engine.settings.engine import EngineConfig
from shared.engine.step.followers.followers import NO_FOLLOWERS
from shared.engine.step.model_parts import build_model_parts
from shared.errors import ConfigError
from shared.model.loader import load_model
from shared.model.sharding.checks import check_narrowing
from shared.model.sharding.model import ShardedCausalLM
from shared.model.sharding.split import Split
from shared.ranks.nccl_group import NcclCollective
from tests.fakes.model.sharded_models import (
    PROMPTS,
    adapted,
    answers,
    check_equal,
    loaded_by,
)
from tests.fakes.model.transformers_models import logits_after, random_model, save
from tests.fakes.ranks.devices import DeviceMeeting, LoneNcclGroup, RegionRecorder
from tests.fakes.ranks.threads import RUN_BY, ThreadCollective, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.model.sharded_models import Answers

#: Ranks, and whether experts are whole.
RUNS = [
    *(("whole norms", size, False) for size in (2, 3, 4)),
    ("windows", 4, False),
    ("shared keys", 3, False),
    ("sinks, experts", 2, False),
    ("sinks, experts", 3, True),
    ("experts apart", 2, False),
    ("latent rows", 3, True),
    ("delta rule", 4, False),
    ("mamba", 2, False),
    ("mamba", 4, True),
    ("short convolutions", 3, False),
    ("fused, transposed", 2, False),
    ("grouped, parallel", 3, False),
]
#: Ranks of what is recorded; with Triton's kernels others are, too.
RECORDED = {
    "whole norms": 3,
    "windows": 4,
    "shared keys": 3,
    "fused, transposed": 2,
    "grouped, parallel": 3,
}


@pytest.mark.parametrize("backend", RUN_BY)
@pytest.mark.parametrize(("name", "size", "expert_parallel"), RUNS)
def test_ranks_answer_as_one_process(
    name: str,
    size: int,
    expert_parallel: bool,
    backend: str,
    checkpoint: Callable[[str], Path],
    alone: Callable[[str], Answers],
) -> None:
    path = checkpoint(name)
    settings: dict[str, Any] = {"expert_parallel": expert_parallel, "attention_backend": backend}
    found = RUN_BY[backend](size, lambda rank: answers(loaded_by(rank, path, **settings)))
    check_equal(found, alone(name))


@pytest.mark.parametrize(("name", "size"), RECORDED.items())
def test_a_recorded_step_reads_nothing_on_the_host(
    name: str, size: int, checkpoint: Callable[[str], Path]
) -> None:
    """It has the same operations on all ranks."""
    config = EngineConfig(block_size=8, num_blocks=8, max_num_seqs=2)
    regions = []
    for rank in (0, size - 1):
        meeting = DeviceMeeting(size)
        group = LoneNcclGroup(meeting, rank)
        collective = NcclCollective(group, rank, size, torch.device("cpu"))
        loaded = loaded_by(collective, checkpoint(name))
        recorder = RegionRecorder(meeting.calls[rank])
        parts = build_model_parts(
            loaded,
            config,
            own_layout(loaded, read_layout(loaded, config)),
            num_blocks=8,
            max_model_len=64,
            recorder=recorder,
            followers=NO_FOLLOWERS,
        )
        NO_FOLLOWERS.record(parts.record)
        parts.arena.close()
        regions.append(recorder.regions)
    assert regions[0] == regions[1]
    assert [len(region) for region in regions[0]] == [len(regions[0][0])] * 2
    assert len(regions[0][0]) > 4


@pytest.mark.parametrize("backend", RUN_BY)
@pytest.mark.parametrize(("name", "size"), [("whole norms", 3), ("delta rule", 2)])
def test_ranks_divide_adapters(
    name: str,
    size: int,
    backend: str,
    checkpoint: Callable[[str], Path],
    alone: Callable[[str], Answers],
) -> None:
    path = checkpoint(name)
    expected = adapted(load_model(path, attention_backend="torch"))
    assert expected[0] != alone(name)[0]
    assert expected[0][1] == alone(name)[0][1]  # without one
    found = RUN_BY[backend](
        size, lambda rank: adapted(loaded_by(rank, path, attention_backend=backend))
    )
    check_equal(found, expected)


def test_ranks_answer_as_transformers(tmp_path: Path) -> None:
    model = random_model("qwen2", num_attention_heads=4, num_key_value_heads=2)
    path = save(model, tmp_path)
    for tokens, logits in run_ranks(4, lambda rank: answers(loaded_by(rank, path))):
        for prompt, answer, ours in zip(PROMPTS, tokens, logits, strict=True):
            theirs = logits_after(model, prompt, answer)
            assert answer == theirs.argmax(dim=-1).tolist()
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


def drawn(collective: ThreadCollective, path: Path, *, is_whole: bool) -> Answers:
    settings = {"load_format": "dummy", "seed": 3, "expert_parallel": is_whole}
    return answers(loaded_by(collective, path, **settings))


def test_drawn_weights_are_parts_of_the_whole_ones(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("sinks, experts")
    expected = answers(load_model(path, attention_backend="torch", load_format="dummy", seed=3))
    for whole in (False, True):
        found = run_ranks(2, functools.partial(drawn, path=path, is_whole=whole))
        check_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "size", "settings", "message"),
    [
        (
            "latent rows",
            4,
            {},
            "does not divide the model's 6 attention heads; sizes that would do: 1, 2, 3, 6",
        ),
        ("delta rule", 3, {}, "the model's 4 heads with states; sizes that would do: 1, 2, 4"),
        ("fused, transposed", 2, {"attention_backend": "native"}, "--attention-backend torch"),
        (
            "fused, transposed",
            2,
            {"attention_backend": "auto", "dtype": "bfloat16", "quantization": "int8"},
            "--attention-backend torch",
        ),
        ("fused, transposed", 2, {"quantization": "int4"}, "not to int4 here"),
        ("fused, transposed", 2, {"model_impl": "transformers"}, "a module of transformers"),
    ],
)
def test_what_ranks_cannot_divide_is_refused(
    name: str,
    size: int,
    settings: dict[str, Any],
    message: str,
    checkpoint: Callable[[str], Path],
) -> None:
    path = checkpoint(name)
    with pytest.raises(ConfigError, match=message):
        run_ranks(size, lambda rank: loaded_by(rank, path, **settings))


def test_ranks_narrow_only_as_one_rank_would() -> None:
    ranks, alone = Split(rank=0, size=2), Split(rank=0, size=1)
    for name in ("none", "int8", "int4"):
        check_narrowing(ranks, name, natively=True)
    check_narrowing(alone, "fp8", natively=True)
    for name, natively in (("fp8", True), ("fp8", False), ("int8", False)):
        with pytest.raises(ConfigError, match=f"not to {name} here"):
            check_narrowing(ranks, name, natively=natively)


def test_one_rank_is_the_whole_model(checkpoint: Callable[[str], Path]) -> None:
    split = Split(rank=0, size=1)
    loaded = load_model(checkpoint("fused, transposed"), attention_backend="torch", split=split)
    assert not isinstance(loaded.model, ShardedCausalLM)
    assert not any(module._forward_hooks for module in loaded.model.modules())  # type: ignore[union-attr]


def test_ranks_without_shared_memory_are_computed_by_pytorch(
    checkpoint: Callable[[str], Path],
) -> None:
    path = checkpoint("fused, transposed")
    with capture_logs() as logs:
        loaded = loaded_by(ThreadCollective.alone(0, 2), path, attention_backend="auto")
    assert isinstance(loaded.model, ShardedCausalLM)
    assert [each["using"] for each in logs if each["event"] == "native_kernels_unavailable"] == [
        "torch"
    ]
