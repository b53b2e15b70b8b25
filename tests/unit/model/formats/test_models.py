"""Quantised checkpoints answer as the dense model that they mean, token for token in float32."""

from __future__ import annotations

import functools
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from shared.errors import ConfigError
from shared.model.causal_lm import CausalLM
from shared.model.checks import check_model
from shared.model.loader import load_model
from tests.fakes.family_cases import CASES
from tests.fakes.paged_driver import PagedDriver
from tests.fakes.stored.base import RoundingWriter, quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.gpt_oss import GptOss
from tests.fakes.stored.integers import Gptq
from tests.fakes.transformers_models import logits_after, random_model, random_prompt, save
from tests.unit.model.checkpoints import edit_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

NUM_TOKENS = 12
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
#: One dense family, one with fused projections, one with experts.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "phi3": CASES["phi3-partial-window"],
    "mixtral": CASES["mixtral"],
    "gpt2": CASES["gpt2"],
    "llama4": CASES["llama4"],
    "deepseek_v3": CASES["deepseek_v3"],
    "gpt_oss": (CASES["gpt_oss"][0], {**CASES["gpt_oss"][1], "intermediate_size": 64}),
}
RUNS = [
    ("qwen2", "ct int4 uneven"),
    ("phi3", "gptq in order"),
    ("mixtral", "awq"),
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each family in float32."""

    @functools.cache
    def make(family: str) -> Path:
        model_type, settings = FAMILIES[family]
        model = random_model(model_type, seed=3, **settings)
        return save(model, tmp_path_factory.mktemp(family))

    return make


@pytest.fixture(scope="module")
def stored(
    plain: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, Path]]:
    """A quantised checkpoint, and the dense one that it means."""

    @functools.cache
    def make(family: str, case: str) -> tuple[Path, Path]:
        source, folder = plain(family), tmp_path_factory.mktemp("stored")
        writer = GptOss() if case == "gpt_oss" else ALL[case]
        wants = is_expert if case == "gpt_oss" else wants_of(source)
        dense = quantise_checkpoint(
            source, folder / "stored", writer, wants, is_turned=family == "gpt2"
        )
        (folder / "dense").mkdir()
        save_file(dense, folder / "dense" / "model.safetensors", metadata={"format": "pt"})
        config = (source / "config.json").read_text()
        (folder / "dense" / "config.json").write_text(config)
        return folder / "stored", folder / "dense"

    return make


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


def is_expert(name: str) -> bool:
    """Of gpt-oss: whether a tensor has the weights of all experts."""
    return ".experts." in name and not name.endswith("bias")


def wants_of(checkpoint: Path) -> Callable[[str], bool]:
    """Of a checkpoint: the linears of layers, but for routers."""
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        dims = {name: len(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    others = ("embed", "lm_head", "wte", "wpe", "gate.weight")
    return lambda name: dims[name] == 2 and not any(each in name for each in others)


class Rounded(TorchFunctionMode):
    """Rounds the inputs of products with the weights of layers, as a format says."""

    def __init__(self, writer: RoundingWriter, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        self._writer = writer
        self._weights = {
            each.untyped_storage().data_ptr()
            for name, each in model.named_parameters()
            if each.ndim > 1 and not any(own in name for own in ("embed", "lm_head", "gate.weight"))
        }
        self.num_rounded = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is linear and args[1].untyped_storage().data_ptr() in self._weights:
            rows = args[0].flatten(0, -2)
            with torch._C.DisableTorchFunction():
                own = [self._writer.round_inputs(row.view(1, 1, -1)).flatten() for row in rows]
            self.num_rounded += 1
            args = (torch.stack(own).view(args[0].shape), *args[1:])
        return function(*args, **(kwargs or {}))


def check_answers(
    checkpoint: Path, backend: str, logits: Callable[[list[int], list[int]], Tensor]
) -> None:
    loaded = load_model(checkpoint, attention_backend=backend)
    answers, ours = PagedDriver(loaded.model, block_size=8, chunk=13).generate(PROMPTS, NUM_TOKENS)
    for prompt, answer, own in zip(PROMPTS, answers, ours, strict=True):
        theirs = logits(prompt, answer)
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("family", "case"), RUNS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_dense_model(
    family: str, case: str, backend: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, dense = stored(family, case)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    check_answers(checkpoint, backend, functools.partial(logits_after, oracle))


@pytest.mark.parametrize(("family", "case"), ROUNDED_RUNS)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_dense_model_with_rounded_inputs(
    family: str, case: str, backend: str, stored: Callable[[str, str], tuple[Path, Path]]
) -> None:
    checkpoint, dense = stored(family, case)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        dense, dtype=torch.float32, experts_implementation="eager"
    )
    writer: Any = ALL[case]
    mode = Rounded(writer, oracle)

    def logits(prompt: list[int], answer: list[int]) -> Tensor:
        with mode:
            return logits_after(oracle, prompt, answer)

    check_answers(checkpoint, backend, logits)
    assert mode.num_rounded


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


def test_the_config_may_have_a_file_of_its_own(
    stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = stored("phi3", "gptq in order")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    raw = json.loads((tmp_path / "config.json").read_text())
    own = raw.pop("quantization_config")
    del own["quant_method"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "quantize_config.json").write_text(json.dumps(own))
    one, other = (
        load_model(path, attention_backend="torch").model for path in (checkpoint, tmp_path)
    )
    assert isinstance(one, CausalLM)
    assert isinstance(other, CausalLM)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_scales_of_a_kv_cache_are_counted_and_not_read(
    stored: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = stored("qwen2", "awq")
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    scales = {
        f"model.layers.0.self_attn.{name}": torch.ones(1)
        for name in ("k_scale", "v_scale", "k_proj.output_scale")
    }
    edit_tensors(tmp_path / "model.safetensors", lambda tensors: tensors.update(scales))
    with capture_logs() as logs:
        load_model(tmp_path, attention_backend="torch")
    assert [each["num"] for each in logs if each["event"] == "kv_scales_not_read"] == [3]
