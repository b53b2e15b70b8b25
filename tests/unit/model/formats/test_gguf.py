"""GGUF files: each number as llama.cpp's library has it, and models that answer as their origin."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from shared.engine.llm import LLM
from shared.errors import ConfigError, ModelLoadError
from shared.gguf.codes import FORMS
from shared.gguf.folder import model_folder, model_name
from shared.gguf.types import TYPES
from shared.model.checkpoint.config import read_config
from shared.model.checkpoint.files.tensor_files import open_tensors, read_headers
from shared.model.checkpoint.headers.contents import Contents
from shared.model.checkpoint.loading.reading import read_tensors
from shared.model.checks import check_model
from shared.model.loader import load_model
from shared.model.matrix.blocks import quantized
from shared.model.matrix.uniting import join
from shared.model.weight_map import Stored, WeightPart
from shared.request.sampling_params import SamplingParams
from tests.fakes.checkpoints.gguf import (
    add_tokenizer,
    edit_header,
    edit_value,
    export,
    finish,
    split,
)
from tests.fakes.families.cases import CASES
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import logits_after, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from shared.gguf.types import TensorType

SHIPPED = Path(__file__).parents[4] / "models" / "pydoc" / "checkpoint"
NUM_TOKENS = 12
NAME, SHAPE = "model.layers.0.mlp.up_proj.weight", (6, 512)
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
#: Rows are multiples of 256, which most types ask for.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide": ("llama", WIDE),
    "llama-wide-tied": ("llama", {"tie_word_embeddings": True, **WIDE}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 16}),
    "gemma2": ("gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 80}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 80,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    **{name: CASES[name] for name in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")},
    "phi3": CASES["phi3-partial-window"],
    **{f"{name}-wide": (name, {**CASES[name][1], **WIDE}) for name in ("mixtral", "gpt_oss")},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels stay where they are: only the folders are elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr("shared.gguf.folder.cache_dir", lambda: folder)
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each family in float32."""

    @functools.cache
    def make(family: str) -> Path:
        model_type, settings = FAMILIES[family]
        return save(random_model(model_type, seed=3, **settings), tmp_path_factory.mktemp(family))

    return make


def of_kinds(*kinds: Type) -> Callable[[str, Tensor], Type]:
    """Types in turn, by the layer and the part."""
    return lambda name, _: kinds[sum(name.encode()) % len(kinds)]


def answers(model: Path, backend: str, **settings: Any) -> tuple[list[list[int]], list[Tensor]]:
    loaded = load_model(model_folder(model), attention_backend=backend, **settings)
    return PagedDriver(loaded.model, block_size=8, chunk=13).generate(PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize("family", [name for name in FAMILIES if "wide" not in name])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_origin(
    family: str, backend: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    model = export(plain(family), tmp_path / "model.gguf")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(plain(family), dtype=torch.float32)
    for prompt, answer, own in zip(PROMPTS, *answers(model, backend), strict=True):
        theirs = logits_after(oracle, prompt, answer)
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_library(kind: TensorType, tmp_path: Path) -> None:
    raw = random_blocks(kind)
    model = write_tensor(tmp_path / "model.gguf", raw, kind)
    assert read_headers(model)[NAME].shape == SHAPE
    with open_tensors(model) as file:
        found = file.get_tensor(NAME).float().numpy()
    expected = gguf.dequantize(raw, Type(kind.number)).astype(np.float32)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", FORMS)
def test_matrices_stay_codes(name: str, tmp_path: Path) -> None:
    """In whole rows, which families permute, cut and join."""
    kind = next(each for each in TYPES.values() if each.name == name)
    raw = random_blocks(kind)
    model = write_tensor(tmp_path / "model.gguf", raw, kind)
    contents = Contents(read_headers(model), {})
    ((_, _, found),) = read_tensors(contents, [model])
    assert not isinstance(found, torch.Tensor)
    part = WeightPart("layers.0.mlp.up")
    matrix = found.read(NAME, Stored(part, SHAPE))
    assert (matrix.bits, matrix.group) == (FORMS[name].bits, FORMS[name].group)
    expected = torch.from_numpy(gguf.dequantize(raw, Type(kind.number)).astype(np.float32))
    order = torch.tensor([3, 1, 1, 5])
    joined = join([matrix.take(order), *matrix.split(2)], alike=True)
    assert joined is not None
    for own in (joined, quantized(joined)):
        assert torch.equal(own.dense(torch.float32), torch.cat([expected[order], expected]))
    with pytest.raises(ModelLoadError, match=r"shape \[6, 512\], the config asks for \[512, 6\]"):
        found.read(NAME, Stored(part, SHAPE[::-1]))


@pytest.mark.parametrize("name", FORMS)
def test_a_scale_that_is_not_finite_is_refused(name: str, tmp_path: Path) -> None:
    kind = next(each for each in TYPES.values() if each.name == name)
    raw = np.full((SHAPE[0], SHAPE[1] // kind.block_values * kind.block_bytes), 0xFF, np.uint8)
    model = write_tensor(tmp_path / "model.gguf", raw, kind)
    with open_tensors(model) as file, pytest.raises(ModelLoadError, match=r"ffn_up.*not finite"):
        file.get_tensor(NAME)


def random_blocks(kind: TensorType) -> np.ndarray[Any, Any]:
    """Blocks of any bytes whose numbers are finite."""
    random = np.random.default_rng(kind.number)
    if kind.block_values == 1:
        return gguf.quantize(random.normal(size=SHAPE).astype(np.float32), Type(kind.number))
    raw = random.integers(0, 256, (512, kind.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        numbers = gguf.dequantize(raw, Type(kind.number))
    raw = raw[np.isfinite(numbers).all(axis=1)]
    return raw[: SHAPE[0] * SHAPE[1] // kind.block_values].reshape(SHAPE[0], -1)


def write_tensor(model: Path, raw: np.ndarray[Any, Any], kind: TensorType) -> Path:
    writer = gguf.GGUFWriter(model, "qwen2")
    plain = kind.name in ("F32", "F16")
    own = None if plain else Type(kind.number)
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=own)
    finish(writer)
    return model


MIXED = {
    "llama-wide": (Type.Q8_0, Type.Q4_0, Type.Q5_1, Type.F16, Type.BF16, Type.MXFP4, Type.Q4_1),
    "llama-wide-tied": (Type.IQ4_XS, Type.Q6_K, Type.IQ4_NL),
    "mixtral-wide": (Type.Q4_0, Type.Q8_0),
    "gpt_oss-wide": (Type.Q4_0, Type.MXFP4),
}


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_answers_equal_those_of_the_dense_model_that_blocks_mean(
    backend: str, family: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    source = plain(family)
    model = export(source, tmp_path / "model.gguf", kind=of_kinds(*MIXED[family]))
    dense = write_dense(model, source, tmp_path / "dense")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32)
    for prompt, answer, own in zip(PROMPTS, *answers(model, backend, dtype="float32"), strict=True):
        theirs = logits_after(oracle, prompt, answer)
        assert answer == theirs.argmax(dim=-1).tolist()
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-3)


def write_dense(model: Path, source: Path, folder: Path) -> Path:
    """A checkpoint with the numbers of a GGUF file in float32, and the config of its source."""
    folder.mkdir()
    with open_tensors(model) as file:
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    assert tensors.keys() == load_file(source / "model.safetensors").keys()
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


@pytest.mark.parametrize(
    ("family", "kind", "num_bytes"),
    [
        ("llama-wide", Type.Q4_0, 0.5 + 2 / 32),
        ("llama-wide-tied", Type.Q4_1, 0.5 + 4 / 32),
        ("llama-wide-tied", Type.Q8_0, 1 + 2 / 32),
        ("llama-wide-tied", Type.IQ4_NL, 0.5 + 2 / 32),
        ("llama-wide-tied", Type.MXFP4, 0.5 + 2 / 32),
    ],
)
def test_the_native_executor_keeps_codes(
    family: str, kind: Type, num_bytes: float, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    """Those of linears and of the output head, whose rows the embedding may be."""
    source = plain(family)
    model = export(source, tmp_path / "model.gguf", kind=of_kinds(kind))
    dense = write_dense(model, source, tmp_path / "dense")
    few, many = (
        load_model(model_folder(each), attention_backend="native", dtype="float32").num_weight_bytes
        for each in (model, dense)
    )
    sizes = {name: each.numel() for name, each in load_file(dense / "model.safetensors").items()}
    head = "embed_tokens.weight" if "tied" in family else "lm_head"
    in_codes = sum(size for name, size in sizes.items() if "proj" in name or head in name)
    assert many - few == pytest.approx(in_codes * (4 - num_bytes), rel=0.01)
    assert answers(model, "native", dtype="float32")[0] == answers(dense, "native")[0]


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_0, Type.Q6_K, Type.Q8_0])
def test_rows_of_the_embedding_are_read_out_of_a_head_in_codes(
    kind: Type, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    model = export(plain("llama-wide-tied"), tmp_path / "model.gguf", kind=of_kinds(kind))
    own = load_model(model_folder(model), attention_backend="native", dtype="bfloat16").model
    with open_tensors(model) as file:
        rows = file.get_tensor("model.embed_tokens.weight").float()
    assert torch.equal(own.embed(torch.arange(len(rows))), rows)


def test_the_first_files_of_gemma_2_mean_its_caps_and_its_window(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    source = shutil.copytree(plain("gemma2"), tmp_path / "hf")
    keys = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window")
    raw = read_config(source)
    (source / "config.json").write_text(json.dumps(raw | dict.fromkeys(keys)))
    made = read_config(model_folder(export(source, tmp_path / "model.gguf")))
    usual = transformers.Gemma2Config()
    assert [made[key] for key in keys] == [getattr(usual, key) for key in keys]


def test_divisors_of_frequencies_are_read(plain: Callable[[str], Path], tmp_path: Path) -> None:
    """Llama 3.1's scheme is a tensor in these files."""
    scheme = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    source = save(random_model("llama", seed=3, rope_parameters=scheme), tmp_path / "hf")
    base = 10000.0 ** -(torch.arange(0, 80, 2).float() / 80)
    config = transformers.AutoConfig.from_pretrained(source)
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    divisors = (base / scaled).numpy()
    model = export(source, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    assert answers(model, "torch")[0] == answers(source, "torch")[0]
    assert answers(model, "torch")[0] != answers(plain("llama"), "torch")[0]


def test_the_shipped_model_answers_the_same_from_one_file(tmp_path: Path) -> None:
    model = export(
        SHIPPED,
        tmp_path / "pydoc.gguf",
        kind=of_kinds(Type.BF16),
        tokenizer=functools.partial(add_tokenizer, SHIPPED),
    )
    folder, file = LLM(SHIPPED), LLM(model)
    messages = [{"role": "user", "content": "What does os.path.join do?"}]
    prompts = [each.chat_template.render(messages) for each in (folder, file)]
    assert prompts[0] == prompts[1]
    texts = [
        each.generate(prompts[0], SamplingParams(max_tokens=24, temperature=0.0))[0].outputs[0].text
        for each in (folder, file)
    ]
    assert texts[0] == texts[1]
    text = "Ein süßer Text,  mit Zahlen 1234 und 你好.\n\tdef f(): pass<|im_end|>\n\n x"
    assert folder.tokenizer.encode(text) == file.tokenizer.encode(text)
    assert folder.tokenizer.decode(folder.tokenizer.encode(text)) == file.tokenizer.decode(
        file.tokenizer.encode(text)
    )
    assert set(folder.tokenizer.eos_token_ids) == set(file.tokenizer.eos_token_ids)
    for each in (folder, file):
        each.close()


def test_a_file_in_several_parts_is_one_model(plain: Callable[[str], Path], tmp_path: Path) -> None:
    whole = export(plain("llama"), tmp_path / "model.gguf")
    parts = split(whole, tmp_path / "parts", 3)
    assert answers(parts[1], "torch")[0] == answers(whole, "torch")[0]
    assert model_name(parts[0]) == "model"
    parts[2].unlink()
    with pytest.raises(ConfigError, match=r"00003-of-00003.gguf is missing \(1 of 3 files are\)"):
        model_folder(parts[0])


def test_every_byte_is_in_the_fingerprint(plain: Callable[[str], Path], tmp_path: Path) -> None:
    model = export(plain("llama"), tmp_path / "model.gguf")
    before = load_model(model_folder(model), attention_backend="torch").fingerprint
    moved = (tmp_path / "elsewhere.gguf").write_bytes(model.read_bytes())
    assert moved
    same = load_model(model_folder(tmp_path / "elsewhere.gguf"), attention_backend="torch")
    assert same.fingerprint == before
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    after = load_model(model_folder(model), attention_backend="torch").fingerprint
    assert after != before


BAD_HEADERS: list[tuple[str, dict[str, Any], str]] = [
    ("type", {"tensor_type": 77}, "unknown type 77"),
    ("offset", {"offset": 2**40}, "ends at byte"),
    ("overlap", {"offset": 0}, "in another one"),
    ("dims", {"dims": (2**40, 2**20)}, "ends at byte"),
    ("zero", {"dims": (0, 96)}, "has dimensions"),
    ("architecture", {"architecture": "bloom"}, "general.architecture 'bloom' is not supported"),
    ("number of tensors", {"num_tensors": 2**60}, "damaged or truncated"),
    ("number of values", {"num_values": 2**60}, "damaged or truncated"),
]


@pytest.mark.parametrize(("edit", "why"), [each[1:] for each in BAD_HEADERS])
def test_a_header_that_claims_too_much_is_refused(
    edit: dict[str, Any], why: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    model = export(plain("llama"), tmp_path / "model.gguf")
    edit_header(model, **edit)
    with pytest.raises(ConfigError, match=why) as caught:
        model_folder(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("attention.head_count_kv", 3, "num_key_value_heads is llama.attention.head_count_kv"),
        ("attention.head_count", 64, "hidden_size is llama.embedding_length"),
        ("embedding_length", 7, "hidden_size is llama.embedding_length"),
        ("feed_forward_length", 7, "intermediate_size is llama.feed_forward_length"),
        ("context_length", 2**30, "max_position_embeddings is llama.context_length"),
    ],
)
def test_a_config_that_is_refused_is_the_files(
    key: str, value: int, why: str, plain: Callable[[str], Path], tmp_path: Path
) -> None:
    """The made folder, which users do not know, is not named."""
    model = export(plain("llama"), tmp_path / "model.gguf")
    edit_value(model, f"llama.{key}", value)
    with pytest.raises(ModelLoadError) as caught:
        check_model(model_folder(model))
    text = str(caught.value)
    assert text.startswith(f"{model}: ")
    assert text.count("/") == str(model).count("/")
    assert why in text


def test_a_truncated_file_is_refused(plain: Callable[[str], Path], tmp_path: Path) -> None:
    model = export(plain("llama"), tmp_path / "model.gguf")
    data = model.read_bytes()
    for size in (0, 3, 4, 20, 100, 1000, len(data) - 1):
        model.write_bytes(data[:size])
        with pytest.raises(ConfigError, match=r"model\.gguf"):
            model_folder(model)


def test_a_tensor_that_the_architecture_has_not_is_refused(
    plain: Callable[[str], Path], tmp_path: Path
) -> None:
    extra = {"blk.0.attn_strange.weight": np.zeros(4, dtype=np.float32)}
    model = export(plain("llama"), tmp_path / "model.gguf", extra=extra)
    with pytest.raises(
        ModelLoadError, match=r"tensor 'blk\.0\.attn_strange\.weight' is not part of"
    ):
        check_model(model_folder(model))
