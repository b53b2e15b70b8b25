"""Ranks, as threads, answer as one process does, and read and keep only their parts."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch
from structlog.testing import capture_logs

from kernels.low_rank import LowRankPart
from shared.engine.config import EngineConfig
from shared.engine.memory.sizing import groups_of, own_layout, read_layout, read_namespace
from shared.errors import ConfigError
from shared.gguf.folder import model_folder
from shared.kv.layout import KVLayout
from shared.kv.split import KVSplit, rank_layout
from shared.model.attention.registry import get_backend
from shared.model.causal_lm import CausalLM
from shared.model.checkpoint.config import load_spec
from shared.model.checkpoint.files.checkpoint_files import find_checkpoint_files
from shared.model.checkpoint.files.tensor_files import SafetensorsFile
from shared.model.checkpoint.loading import weights
from shared.model.checkpoint.loading.weights import load_weights
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.model.sharding.model import ShardedCausalLM
from shared.model.sharding.shards import Shards
from shared.model.sharding.split import Split
from tests.fakes.family_cases import CASES
from tests.fakes.gguf_model import export
from tests.fakes.paged_driver import PagedDriver
from tests.fakes.ranks import ThreadCollective, run_ranks
from tests.fakes.stored.base import quantise_checkpoint
from tests.fakes.stored.cases import ALL
from tests.fakes.stored.models import wants_of
from tests.fakes.transformers_models import logits_after, random_model, random_prompt, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.model.loader import LoadedModel

    Answers = tuple[list[list[int]], list[torch.Tensor]]

#: A token, around a block of 8, and three chunks of 13: windows are shorter.
PROMPTS = [random_prompt(n, vocab_size=321, seed=n) for n in (1, 9, 30)]
NUM_TOKENS = 5
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_attention_heads": 4}
#: By kind of layer: a family, and what its heads are so that ranks can divide them.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # 4 heads of keys and values are 1, 1 and 2 on three ranks; their norms are over all of them.
    "whole norms": ("olmo2", {"num_attention_heads": 12, "num_key_value_heads": 4}),
    "windows": ("exaone4", {"num_attention_heads": 12, "num_key_value_heads": 1, "head_dim": 16}),
    "shared keys": ("gemma4-keys", {}),
    "sinks, experts": ("gpt_oss", {}),
    "experts apart": ("gemma4-experts", {}),
    "latent rows": ("deepseek_v2-groups", {}),
    "delta rule": ("qwen3_next", {**_DELTA, "num_key_value_heads": 1}),
    "mamba": ("granite4-experts", {"num_attention_heads": 4, "mamba_n_groups": 1}),
    "short convolutions": ("lfm2-biased-plain", {}),
    "fused, transposed": ("gpt2", {}),
    "grouped, parallel": ("falcon-40b", {}),
}
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
#: Heads of 32 and 6 groups of 32 inner numbers.
_IN_GROUPS = {
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 192,
}
STORED = [
    ("ct int4 float16", 3),
    ("gptq in order", 2),
    ("awq", 2),
    ("ct fp8 tokens", 2),
    ("ct nvfp4 inputs", 3),
]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def make(name: str) -> Path:
        case, heads = MODELS[name]
        model_type, settings = CASES[case]
        return save(random_model(model_type, **{**settings, **heads}), tmp_path_factory.mktemp("m"))

    return make


@pytest.fixture(scope="module")
def alone(checkpoint: Callable[[str], Path]) -> Callable[[str], Answers]:
    """What one process answers."""

    @functools.cache
    def ask(name: str) -> Answers:
        return answers(load_model(checkpoint(name), attention_backend="torch"))

    return ask


def answers(loaded: LoadedModel) -> Answers:
    driver = PagedDriver(loaded.model, block_size=8, chunk=13)  # type: ignore[arg-type]
    return driver.generate(PROMPTS, NUM_TOKENS)


def adapted(loaded: LoadedModel) -> Answers:
    """What a model answers with an adapter for all but one prompt: of two parts in each linear."""
    model, draw = loaded.model, torch.Generator().manual_seed(2)
    assert isinstance(model, CausalLM)

    def part(first: int, end: int, in_size: int) -> LowRankPart:
        a, b = (
            torch.randn(shape, generator=draw) / 8 for shape in ((5, in_size), (end - first, 5))
        )
        return LowRankPart(first, a, b, scale=0.5)

    found = {
        path: [part(1, out // 3, in_size), part(out // 3 + 1, out, in_size)]
        for path, (in_size, out) in model.adapter_linears.items()
    }
    model.set_adapter(1, found)
    driver = PagedDriver(model, block_size=8, chunk=13)
    return driver.generate(PROMPTS, NUM_TOKENS, slots=[1, None, 1])


def loaded_by(collective: ThreadCollective, path: Path, **settings: Any) -> LoadedModel:
    is_whole = settings.pop("expert_parallel", False)
    split = Split(rank=collective.rank, size=collective.size, expert_parallel=is_whole)
    settings = {"attention_backend": "torch"} | settings
    return load_model(path, split=split, collective=collective, **settings)


def check_equal(found: list[Answers], expected: Answers, tolerance: float = 5e-4) -> None:
    for tokens, logits in found:
        assert tokens == expected[0]
        for ours, theirs in zip(logits, expected[1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=tolerance)
    for _, logits in found[1:]:  # all ranks choose from the same numbers
        assert all(map(torch.equal, logits, found[0][1]))


@pytest.mark.parametrize(("name", "size", "expert_parallel"), RUNS)
def test_ranks_answer_as_one_process(
    name: str,
    size: int,
    expert_parallel: bool,
    checkpoint: Callable[[str], Path],
    alone: Callable[[str], Answers],
) -> None:
    path = checkpoint(name)
    found = run_ranks(
        size, lambda rank: answers(loaded_by(rank, path, expert_parallel=expert_parallel))
    )
    check_equal(found, alone(name))


@pytest.mark.parametrize(("name", "size"), [("whole norms", 3), ("delta rule", 2)])
def test_ranks_divide_adapters(
    name: str,
    size: int,
    checkpoint: Callable[[str], Path],
    alone: Callable[[str], Answers],
) -> None:
    path = checkpoint(name)
    expected = adapted(load_model(path, attention_backend="torch"))
    assert expected[0] != alone(name)[0]
    assert expected[0][1] == alone(name)[0][1]  # without one
    check_equal(run_ranks(size, lambda rank: adapted(loaded_by(rank, path))), expected)


def test_ranks_answer_as_transformers(tmp_path: Path) -> None:
    model = random_model("qwen2", num_attention_heads=4, num_key_value_heads=2)
    path = save(model, tmp_path)
    for tokens, logits in run_ranks(4, lambda rank: answers(loaded_by(rank, path))):
        for prompt, answer, ours in zip(PROMPTS, tokens, logits, strict=True):
            theirs = logits_after(model, prompt, answer)
            assert answer == theirs.argmax(dim=-1).tolist()
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(("case", "size"), STORED)
def test_ranks_divide_quantised_matrices(case: str, size: int, tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "stored"
    save(random_model("qwen2", seed=3, **_IN_GROUPS), plain)
    quantise_checkpoint(plain, path, ALL[case], wants_of(plain))
    expected = answers(load_model(path, attention_backend="torch"))
    found = run_ranks(size, lambda rank: answers(loaded_by(rank, path)))
    check_equal(found, expected, tolerance=2e-3)


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
    expected = answers(load_model(path, attention_backend="torch", dtype="float32"))
    found = run_ranks(4, lambda rank: answers(loaded_by(rank, path, dtype="float32")))
    check_equal(found, expected, tolerance=2e-3)


def test_a_rank_keeps_its_share(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, CheckpointSpec(vocab_size=321))
    whole = load_model(tmp_path, attention_backend="torch")
    parts = run_ranks(2, lambda rank: loaded_by(rank, tmp_path))
    total = whole.num_weight_bytes
    assert all(total / 2 <= part.num_weight_bytes < total * 0.52 for part in parts)


def test_a_rank_reads_only_its_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied into the model are views of the file, and of its bytes a share."""
    write_random_checkpoint(tmp_path, CheckpointSpec())
    (file,) = tmp_path.glob("*.safetensors")
    mapped: list[range] = []
    copied: list[torch.Tensor] = []
    opened, copy = SafetensorsFile.get_tensor, weights.copy_stored

    def open_one(own: SafetensorsFile, name: str) -> torch.Tensor:
        tensor = opened(own, name)
        mapped.append(range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
        return tensor

    def copy_one(target: torch.Tensor, stored: torch.Tensor, path: Path, name: str) -> None:
        assert stored.data_ptr() in mapped[-1]
        copied.append(stored)
        copy(target, stored, path, name)

    monkeypatch.setattr(SafetensorsFile, "get_tensor", open_one)
    monkeypatch.setattr(weights, "copy_stored", copy_one)
    model = ShardedCausalLM(
        shards=Shards(load_spec(tmp_path), Split(rank=3, size=4)),
        collective=ThreadCollective.alone(3, 4),
        backend=get_backend("torch"),
        dtype=torch.float32,
    )
    load_weights(model, find_checkpoint_files(tmp_path))
    total = file.stat().st_size
    # 2 heads of keys and values are one on each of 4 ranks; norms are everywhere.
    assert total / 4 < sum(tensor.nbytes for tensor in copied) < total * 0.3


def drawn(collective: ThreadCollective, path: Path, *, is_whole: bool) -> Answers:
    settings = {"load_format": "dummy", "seed": 3, "expert_parallel": is_whole}
    return answers(loaded_by(collective, path, **settings))


def test_drawn_weights_are_parts_of_the_whole_ones(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("sinks, experts")
    expected = answers(load_model(path, attention_backend="torch", load_format="dummy", seed=3))
    for whole in (False, True):
        found = run_ranks(2, functools.partial(drawn, path=path, is_whole=whole))
        check_equal(found, expected)


@pytest.mark.parametrize("name", ["whole norms", "mamba", "latent rows"])
def test_identities_are_those_of_the_whole_model(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    config, path = EngineConfig(block_size=8), checkpoint(name)
    whole = load_model(path, attention_backend="torch")
    layout = read_layout(whole, config)
    assert own_layout(whole, layout) is layout
    size = 3 if name == "latent rows" else 4
    kept = []
    for part in run_ranks(size, lambda rank: loaded_by(rank, path)):
        assert (part.spec, part.fingerprint) == (whole.spec, whole.fingerprint)
        assert read_layout(part, config) == layout
        assert read_namespace(part, read_layout(part, config)) == read_namespace(whole, layout)
        own = own_layout(part, layout)
        assert [group.num_layers for group in own.groups] == [
            group.num_layers for group in layout.groups
        ]
        kept.append([(group.num_kv_heads, group.state_size) for group in own.groups])
    whole_kept = [(group.num_kv_heads, group.state_size) for group in layout.groups]
    if name == "whole norms":
        assert kept == [[(1, 0)]] * 4
    if name == "latent rows":  # every rank keeps all of a row
        assert kept == [whole_kept] * 3
    if name == "mamba":  # 3 inputs of 48 channels and the group's 36, and 48 states of 18
        assert {state for own in kept for _, state in own} == {0, 3 * (48 + 36) + 48 * 18}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_of_a_block_is_what_is_handed_over(
    name: str, checkpoint: Callable[[str], Path]
) -> None:
    """Executors follow a rank's description, transfers its layout."""
    spec = load_spec(checkpoint(name))
    layout = KVLayout.of(groups_of(spec), block_size=8, dtype="float32")
    num_divided = 0
    for size in (2, 3, 4):
        for rank in range(size):
            try:
                own = Shards(spec, Split(rank=rank, size=size)).spec
            except ConfigError:
                continue
            expected = rank_layout(layout, KVSplit.of(layout, size), rank)
            assert groups_of(own) == expected.groups
            # Sections of states are not compared with the rest of a group.
            assert [g.sections for g in groups_of(own)] == [g.sections for g in expected.groups]
            num_divided += 1
    assert num_divided >= 2


def test_ranks_group_layers_as_the_whole_model(checkpoint: Callable[[str], Path]) -> None:
    """4 layers of 2 heads and 2 layers of 4 keep as much; of a head each, twice as much."""
    spec = load_spec(checkpoint("whole norms"))
    first = spec.layers[0]
    near, far = (
        replace(first, mixer=replace(first.attention, num_kv_heads=heads, window=window))
        for heads, window in ((2, 11), (4, None))
    )
    whole = replace(spec, layers=(near,) * 4 + (far,) * 2)
    assert len(whole.kv_groups) == 2
    for rank in range(4):
        own = Shards(whole, Split(rank=rank, size=4)).spec
        assert own.kv_groups == whole.kv_groups
        assert [own.kv_place(layer) for layer in range(6)] == [
            whole.kv_place(layer) for layer in range(6)
        ]


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
        ("fused, transposed", 2, {"quantization": "int8"}, "not narrowed to int8"),
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


def test_groups_that_share_a_scale_are_not_divided(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain", tmp_path / "stored"
    save(random_model("qwen2", head_dim=16, num_attention_heads=4), plain)
    quantise_checkpoint(plain, path, ALL["gptq in order"], wants_of(plain))
    with pytest.raises(ConfigError, match=r"groups of 32 that share a scale.*would do: 1, 2$"):
        run_ranks(4, lambda rank: loaded_by(rank, path))


def test_one_rank_is_the_whole_model(checkpoint: Callable[[str], Path]) -> None:
    split = Split(rank=0, size=1)
    loaded = load_model(checkpoint("fused, transposed"), attention_backend="torch", split=split)
    assert not isinstance(loaded.model, ShardedCausalLM)
    assert not any(module._forward_hooks for module in loaded.model.modules())  # type: ignore[union-attr]


def test_ranks_on_cpus_are_computed_by_pytorch(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("fused, transposed")
    with capture_logs() as logs:
        loaded = loaded_by(ThreadCollective.alone(0, 2), path, attention_backend="auto")
    assert isinstance(loaded.model, ShardedCausalLM)
    assert [each["using"] for each in logs if each["event"] == "native_kernels_unavailable"] == [
        "torch"
    ]
