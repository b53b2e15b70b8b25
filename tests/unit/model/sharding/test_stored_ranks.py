"""Ranks divide quantised matrices, and round as one process does."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from shared.errors import ConfigError
from shared.gguf.folder import model_folder
from shared.model.loader import load_model
from tests.fakes.checkpoints.gguf import export
from tests.fakes.families.cases import CASES
from tests.fakes.model.sharded_models import (
    IN_GROUPS,
    answers,
    check_equal,
    check_ranks,
    check_same_bits,
    loaded_by,
)
from tests.fakes.model.staged_model import load_stages
from tests.fakes.model.transformers_models import random_model, save
from tests.fakes.ranks.threads import RUN_BY, run_native_ranks, run_ranks
from tests.fakes.stored.answers import NUM_ROUNDED_TOKENS, SHORT_PROMPTS, check_rows
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.models import wants_of
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.ranks.base import Collective
    from tests.fakes.model.sharded_models import Answers


STORED = [
    ("ct int4 float16", 3),
    ("gptq in order", 2),
    ("awq", 2),
    ("ct fp8 tokens", 2),
    ("ct nvfp4 inputs", 3),
]
#: Rounded inputs, of which the native kernels multiply codes.
ROUNDED = [("ct w8a8", 3), ("ct w8a8 uneven", 2)]
#: What dense weights become, the dtype, and ranks.
NARROWED = [("int8", "bfloat16", 3), ("int4", "bfloat16", 3), ("int4", "float32", 2)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_model("qwen2", seed=3, **IN_GROUPS), tmp_path_factory.mktemp("plain"))


def check_parts(path: Path, size: int, tolerance: float, backend: str, **settings: Any) -> None:
    """Ranks answer as one process with the same kernels does; of native stages, bit by bit."""
    settings["attention_backend"] = backend
    expected = answers(load_model(path, num_threads=1, **settings))
    found = RUN_BY[backend](size, lambda rank: answers(loaded_by(rank, path, **settings)))
    check_equal(found, expected, tolerance)
    if backend == "native":
        check_same_bits(answers(load_stages(path, 2, **settings)), expected)


@pytest.mark.parametrize(
    ("case", "size", "backend"),
    [(*each, backend) for each in STORED for backend in ("torch", "native")],
)
def test_ranks_divide_quantised_matrices(
    case: str, size: int, backend: str, plain: Path, tmp_path: Path
) -> None:
    quantise_checkpoint(plain, tmp_path, ALL[case], wants_of(plain))
    check_parts(tmp_path, size, 2e-3 if backend == "torch" else 2e-4, backend)


@pytest.mark.parametrize(("case", "size"), ROUNDED)
def test_ranks_divide_matrices_whose_inputs_are_rounded(
    case: str, size: int, plain: Path, tmp_path: Path
) -> None:
    """Sums of parts may take an input that lies between two codes to the other one."""
    quantise_checkpoint(plain, tmp_path, ALL[case], wants_of(plain))
    settings: dict[str, Any] = {"attention_backend": "native"}
    asked = SHORT_PROMPTS, NUM_ROUNDED_TOKENS
    expected = answers(load_model(tmp_path, num_threads=1, **settings), *asked)
    found = run_native_ranks(
        size, lambda rank: answers(loaded_by(rank, tmp_path, **settings), *asked)
    )
    check_rows(found[0][1], expected[1], at_least=0.5, tolerance=2e-4)
    check_ranks(found)
    check_same_bits(answers(load_stages(tmp_path, 2, **settings), *asked), expected)


def test_no_stage_computes_in_another_way_than_the_others(plain: Path, tmp_path: Path) -> None:
    """One of which the native kernels do not know a layer."""
    quantise_checkpoint(plain, tmp_path, ALL["ct w8a8 static"], wants_of(plain))
    name = "model.layers.1.self_attn.k_proj.input_scale"
    edit_tensors(tmp_path / "model.safetensors", lambda tensors: tensors[name].mul_(2))
    refusal = "pipeline_parallel_size 2: .* round inputs alike.* take --attention-backend torch"
    with pytest.raises(ConfigError, match=refusal):
        load_stages(tmp_path, 2)


@pytest.mark.parametrize(("quantization", "dtype", "size"), NARROWED)
def test_ranks_narrow_weights_as_one_process(
    quantization: str, dtype: str, size: int, plain: Path
) -> None:
    """Where sums of all inputs are exact, or rows of 8 bits, so are results nearly."""
    check_parts(plain, size, 2e-4, "native", quantization=quantization, dtype=dtype)


def test_ranks_narrow_experts_as_one_process(checkpoint: Callable[[str], Path]) -> None:
    """Two have the experts whole, and parts of the one that all tokens share."""
    path = checkpoint("mamba")
    settings: dict[str, Any] = {"quantization": "int8", "dtype": "bfloat16"}
    expected = answers(load_model(path, num_threads=1, **settings))
    for whole in (False, True):
        found = run_native_ranks(
            2, functools.partial(_narrowed, path=path, expert_parallel=whole, **settings)
        )
        check_equal(found, expected)


def _narrowed(collective: Collective, path: Path, **settings: Any) -> Answers:
    return answers(loaded_by(collective, path, attention_backend="native", **settings))


@pytest.mark.parametrize(("model_type", "kinds"), [("llama", "Q4_K Q8_0"), ("gpt_oss", "Q8_0")])
def test_ranks_divide_blocks_of_gguf(
    model_type: str, kinds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 256 numbers are one block of Q4_K, which is taken apart, and 8 of Q8_0."""
    monkeypatch.setattr("shared.gguf.folder.cache_dir", lambda: tmp_path / "cache")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    settings = {**CASES.get(model_type, ("", {}))[1], **sizes, "num_attention_heads": 4}
    plain = save(random_model(model_type, seed=3, **settings), tmp_path / "plain")
    types = [gguf.GGMLQuantizationType[kind] for kind in kinds.split()]
    file = export(
        plain, tmp_path / "a.gguf", kind=lambda name, _: types[sum(name.encode()) % len(types)]
    )
    path = model_folder(file)
    for backend in RUN_BY:
        check_parts(path, 4, 2e-3, backend, dtype="float32")


def test_groups_that_share_a_scale_are_not_divided(tmp_path: Path) -> None:
    """Neither those of a checkpoint, nor those that weights are rounded in."""
    dense, path = tmp_path / "plain", tmp_path / "stored"
    save(random_model("qwen2", head_dim=16, num_attention_heads=4), dense)
    quantise_checkpoint(dense, path, ALL["gptq in order"], wants_of(dense))
    refusal = r"groups of 32 that share a scale.*would do: 1, 2$"
    with pytest.raises(ConfigError, match=refusal):
        run_ranks(4, lambda rank: loaded_by(rank, path))
    narrow = {"quantization": "int4", "attention_backend": "native"}
    with pytest.raises(ConfigError, match=refusal):
        run_native_ranks(4, lambda rank: loaded_by(rank, dense, **narrow))
