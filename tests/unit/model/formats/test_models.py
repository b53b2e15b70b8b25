"""Quantised checkpoints answer as the dense model that they mean, token for token in float32."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from shared.errors import ConfigError, ModelLoadError
from shared.model.checks import check_model
from shared.model.decoder.causal_lm import CausalLM
from shared.model.loader import load_model
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.stored.answers import NUM_TOKENS, PROMPTS, check_answers
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import WITH_INPUTS
from tests.fakes.stored.integers import Gptq
from tests.fakes.stored.models import is_expert
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

RUNS = [
    ("qwen2", "ct int4 uneven"),
    ("phi3", "gptq in order"),
    ("mixtral", "awq"),
    ("phi3", "torchao int4"),
    ("phi3", "ct nvfp4"),
    ("gpt2", "gptq uneven"),
    ("gpt_oss", "gpt_oss"),
    ("deepseek_v3", "ct int4 rows"),
]
ROUNDED_RUNS = [
    ("qwen2", "ct mxfp4 inputs"),
    ("phi3", "ct w8a8"),
    ("qwen2", "fp8 static"),
    ("mixtral", "fp8 blocks"),
    ("phi3", "quark mxfp6"),
    ("mixtral", "ct w8a8 static uneven"),
    ("phi3", "ct nvfp4 inputs"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def experts_apart(tensors: Mapping[str, Tensor], *, take_turns: bool) -> dict[str, Tensor]:
    """A model whose experts are [columns, rows] of all, as its quantisers store it: by expert.

    take_turns: gates and ups do. Otherwise all gates come first.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        begin, is_of_experts, what = name.partition(".experts.")
        if not is_of_experts:
            found[name] = tensor
            continue
        suffix = "bias" if what.endswith("bias") else "weight"
        for number, own in enumerate(tensor if suffix == "bias" else tensor.transpose(1, 2)):
            at = f"{begin}.experts.{number}"
            if what.startswith("down"):
                parts = {"down": own}
            else:
                gate, up = (own[::2], own[1::2]) if take_turns else own.chunk(2)
                parts = {"gate": gate, "up": up}
            found |= {f"{at}.{part}_proj.{suffix}": rows for part, rows in parts.items()}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def write(folder: Path, tensors: dict[str, Tensor], config: Path) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(config / "config.json", folder)
    return folder


@pytest.mark.parametrize("family", ["gpt_oss", "llama4"])
def test_experts_may_be_stored_apart(
    family: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    """A row is quantised by itself, so all of it may be quantised before it is cut, or behind."""
    source, take_turns = plain(family), family == "gpt_oss"
    tensors, writer = load_file(source / "model.safetensors"), Gptq(bits=8, group=8)
    whole = {
        name: torch.stack([writer.write(own.T).dense.T for own in tensor]).contiguous()
        if is_expert(name)
        else tensor
        for name, tensor in tensors.items()
    }
    apart = write(tmp_path / "apart", experts_apart(tensors, take_turns=take_turns), source)
    quantise_checkpoint(
        apart,
        tmp_path / "stored",
        writer,
        lambda name: ".experts." in name and name.endswith("weight"),
    )
    ours, expected = (
        load_model(path, attention_backend="torch").model
        for path in (tmp_path / "stored", write(tmp_path / "whole", whole, source))
    )
    assert isinstance(ours, CausalLM)
    assert isinstance(expected, CausalLM)
    for mine, other in zip(ours.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(("family", "case"), RUNS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_dense_model(
    family: str, case: str, backend: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, dense = stored(family, case)
    check_answers(checkpoint, dense, attention_backend=backend)


@pytest.mark.parametrize(("family", "case"), ROUNDED_RUNS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_dense_model_with_rounded_inputs(
    family: str, case: str, backend: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, dense = stored(family, case)
    check_answers(checkpoint, dense, WITH_INPUTS[case], attention_backend=backend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "case"), [*ROUNDED_RUNS, ("phi3", "gptq in order")])
def test_bits_depend_on_no_batch_no_chunks_and_no_threads(
    family: str, case: str, dtype: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, _ = stored(family, case)

    def logits(prompts: list[list[int]], *, chunk: int, num_threads: int) -> list[Tensor]:
        loaded = load_model(
            checkpoint, dtype=dtype, attention_backend="native", num_threads=num_threads
        )
        driver = PagedDriver(loaded.model, block_size=8, chunk=chunk, seed=chunk)
        return driver.generate(prompts, 4)[1]

    together = logits(PROMPTS, chunk=13, num_threads=2)
    for prompt, expected in zip(PROMPTS, together, strict=True):
        assert torch.equal(logits([prompt], chunk=64, num_threads=1)[0], expected)


def test_what_is_computed_with_is_in_the_fingerprint(
    plain: Callable[[str], Path], stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    """Workers refuse each other's KV by it, and blocks are hashed with it."""
    checkpoints = [plain("qwen2"), *stored("qwen2", "ct int4 uneven"), stored("qwen2", "awq")[0]]
    loaded = [load_model(path, attention_backend="torch") for path in checkpoints]
    again = load_model(checkpoints[1], attention_backend="torch", quantization="int8")
    assert len({each.fingerprint for each in (*loaded, again)}) == len(checkpoints) + 1


def test_weights_may_be_narrowed_further(stored: Callable[[str, str], tuple[Path, Path]]) -> None:
    """As those of the dense model."""
    answers = [
        PagedDriver(
            load_model(path, attention_backend="torch", quantization="int8").model,
            block_size=8,
            chunk=13,
        ).generate(PROMPTS, NUM_TOKENS)[0]
        for path in stored("qwen2", "ct int4 uneven")
    ]
    assert answers[0] == answers[1]


def test_rounded_inputs_exclude_what_does_not_round_them(
    stored: Callable[[str, str], tuple[Path, Path]],
) -> None:
    checkpoint, _ = stored("phi3", "ct w8a8")
    with pytest.raises(ConfigError, match="--quantization int4 cannot be added"):
        check_model(checkpoint, quantization="int4")


def test_projections_that_round_inputs_differently_are_refused_natively(
    stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """They are one product there; PyTorch has one for each."""
    shutil.copytree(stored("qwen2", "fp8 static")[0], tmp_path, dirs_exist_ok=True)
    name = "model.layers.1.self_attn.k_proj.input_scale"
    edit_tensors(tmp_path / "model.safetensors", lambda tensors: tensors[name].mul_(2))
    with pytest.raises(ConfigError, match="of 96 to 480, 160, 160 numbers do not round"):
        load_model(tmp_path, attention_backend="native")
    with capture_logs() as logs:
        assert isinstance(load_model(tmp_path).model, CausalLM)
    assert any(each["event"] == "native_kernels_unavailable" for each in logs)


def test_codes_stay_narrow_where_inputs_are_rounded(
    plain: Callable[[str], Path], stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    dense, narrow = (
        load_model(path, attention_backend="torch").model
        for path in (plain("phi3"), stored("phi3", "ct w8a8")[0])
    )
    assert isinstance(dense, CausalLM)
    assert isinstance(narrow, CausalLM)
    outer = 2 * dense.embedding.nbytes
    of_projections = (narrow.num_weight_bytes - outer) / (dense.num_weight_bytes - outer)
    assert 0.25 <= of_projections < 0.3


@pytest.mark.parametrize("text", ["5", '{"quantization": 5}'])
def test_a_file_of_the_config_that_is_no_object_is_refused_by_name(
    text: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(plain("phi3"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "quant_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"quant_config.json holds int for a quantization_con"):
        check_model(tmp_path)


@pytest.mark.parametrize("left", [{}, {"quantization_config": None}], ids=["absent", "null"])
def test_the_config_may_have_a_file_of_its_own(
    left: dict[str, Any], stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = stored("phi3", "gptq in order")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    raw = json.loads((tmp_path / "config.json").read_text())
    own = raw.pop("quantization_config")
    del own["quant_method"]
    (tmp_path / "config.json").write_text(json.dumps(raw | left))
    (tmp_path / "quantize_config.json").write_text(json.dumps(own))
    one, other = (
        load_model(path, attention_backend="torch").model for path in (checkpoint, tmp_path)
    )
    assert isinstance(one, CausalLM)
    assert isinstance(other, CausalLM)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_first_versions_of_compressed_tensors_had_another_key(
    stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = stored("phi3", "ct w8a8")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    raw = json.loads((tmp_path / "config.json").read_text())
    own = raw.pop("quantization_config")
    del own["quant_method"]
    (tmp_path / "config.json").write_text(json.dumps({**raw, "compression_config": own}))
    one, other = (load_model(each, attention_backend="torch") for each in (checkpoint, tmp_path))
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
