"""Layers in several KV groups, each with block tables of its own: tokens are those of one group."""

from __future__ import annotations

import functools
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shared.engine.memory.sizing import describe_groups
from shared.errors import ConfigError
from shared.model.drafts.random_heads import HeadSpec, write_random_head
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.engine.engines import StepMode, drain, generate, make_engine, make_request
from tests.fakes.engine.kv_groups import all_tokens_kept, split_layers
from tests.fakes.families.cases import FULL, SLIDING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shared.engine.engine import Engine

#: 5 layers: groups of 2, 2 and 1, or of 3 and 2. Blocks of the smaller one are not full.
CHECKPOINT = CheckpointSpec(
    architecture="qwen3", num_layers=5, vocab_size=321, num_heads=6, num_kv_heads=2, head_dim=10
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped")
    write_random_checkpoint(path / "target", CHECKPOINT)
    write_random_checkpoint(path / "draft", CheckpointSpec(num_layers=1, vocab_size=321))
    write_random_head(path / "eagle3", path / "target", HeadSpec(method="eagle3"))
    return path


def run(engine: Engine) -> dict[str, list[int]]:
    """Prompts with common beginnings, twice, so that there are hits within and between steps."""
    tokens = {}
    for turn in range(2):
        for number in range(6):
            prompt = [(7 * i + number // 3) % 200 + 3 for i in range(9 + 5 * (number % 3))]
            engine.add(make_request(f"{turn} {number}", prompt, max_tokens=12, ignore_eos=True))
        done = drain(engine)
        engine.check_integrity()
        tokens |= {f"{turn} {number}": done.tokens(f"{turn} {number}") for number in range(6)}
    if engine.cached.offload is not None:
        engine.cached.offload.settle()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return tokens


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "usual": ({}, "prefix_cache_hits"),
    "short of blocks": ({"num_blocks": 14}, "num_preemptions"),
    "KV in 8 bits": ({"kv_cache_dtype": "int8"}, "prefix_cache_hits"),
    "offload": (
        {"num_blocks": 14, "kv_offload_host_gib": 0.01, "kv_offload_always_load": True},
        "prefix_cache_hits",
    ),
    "ngram": (
        {"speculative_config": {"method": "ngram", "adaptive": False}},
        "spec_decode_num_draft_tokens",
    ),
    "draft": ({"speculative_config": {"method": "draft_model"}}, "spec_decode_num_draft_tokens"),
    "eagle3": ({"speculative_config": {"method": "eagle3"}}, "spec_decode_num_draft_tokens"),
}


#: What an executor reads of the groups; who holds which block is no matter of executors.
_WITH_TORCH = ("usual", "KV in 8 bits", "eagle3")


@pytest.fixture(scope="module")
def of_one_group(folder: Path) -> Callable[[str, str], dict[str, list[int]]]:
    """By executor and type of KV: the answers, which no setting changes."""

    @functools.cache
    def compute(executor: str, kv_cache_dtype: str) -> dict[str, list[int]]:
        model = load_model(folder / "target", attention_backend=executor)
        engine = make_engine(model, num_blocks=64, kv_cache_dtype=kv_cache_dtype)
        assert engine.layout.num_groups == 1
        with closing(engine):
            return run(engine)

    return compute


@pytest.mark.parametrize(
    ("executor", "name", "num_groups"),
    [
        *(("native", name, 2) for name in SETTINGS),
        *(("torch", name, 2) for name in _WITH_TORCH),
        *((executor, "usual", 3) for executor in ("native", "torch")),
    ],
)
def test_tokens_are_those_of_one_group(
    folder: Path,
    of_one_group: Callable[[str, str], dict[str, list[int]]],
    executor: str,
    name: str,
    num_groups: int,
) -> None:
    settings, counter = SETTINGS[name]
    settings = {"num_blocks": 32} | settings
    if "speculative_config" in settings:
        settings["speculative_config"] = _speculation(folder, **settings["speculative_config"])
    settings["num_blocks"] *= num_groups
    with split_layers(num_groups):
        model = load_model(folder / "target", attention_backend=executor)
        engine = make_engine(model, StepMode.OVERLAPPED, **settings)
    assert engine.layout.num_groups == num_groups
    with closing(engine):
        assert run(engine) == of_one_group(executor, settings.get("kv_cache_dtype", "auto"))
        assert engine.stats().counters[counter]


#: Of 6 tokens: more than a block, less than two.
WINDOWED = {
    "use_sliding_window": True,
    "sliding_window": 6,
    "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
}


#: The last two of five layers read keys and values of others; a head of those without a window has
#: 32 numbers.
SHARED = CheckpointSpec(
    architecture="gemma4_text",
    num_layers=5,
    vocab_size=321,
    extra={
        "sliding_window": 6,
        "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
        "num_kv_shared_layers": 2,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 12,
        "vocab_size_per_layer_input": 321,
    },
)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("windowed")
    write_random_checkpoint(path, replace(CHECKPOINT, extra=WINDOWED))
    return path


_WITH_WINDOWS = ("usual", "short of blocks", "KV in 8 bits", "offload")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared")
    write_random_checkpoint(path, SHARED)
    return path


@pytest.fixture(scope="module")
def of_all_tokens(windowed: Path, shared: Path) -> Callable[[str, str, str], dict[str, list[int]]]:
    """By folder, executor and type of KV: the answers where the KV of all tokens is kept."""

    @functools.cache
    def compute(folder_of: str, executor: str, kv_cache_dtype: str) -> dict[str, list[int]]:
        path = {"windowed": windowed, "shared": shared}[folder_of]
        with all_tokens_kept():
            model = load_model(path, attention_backend=executor)
            engine = make_engine(
                model, num_blocks=64, max_num_batched_tokens=10, kv_cache_dtype=kv_cache_dtype
            )
        with closing(engine):
            return run(engine)

    return compute


@pytest.mark.parametrize(
    ("executor", "folder_of", "few", "name"),
    [
        *(("native", "windowed", 23, name) for name in (*_WITH_WINDOWS, "ngram")),
        *(("native", "shared", 16, name) for name in _WITH_WINDOWS),
        ("torch", "windowed", 23, "usual"),
        ("torch", "windowed", 23, "KV in 8 bits"),
        ("torch", "windowed", 23, "ngram"),
        ("torch", "shared", 16, "short of blocks"),
        ("torch", "shared", 16, "KV in 8 bits"),
    ],
)
def test_a_window_keeps_what_is_read(
    folder_of: str,
    few: int,
    executor: str,
    name: str,
    of_all_tokens: Callable[[str, str, str], dict[str, list[int]]],
    request: pytest.FixtureRequest,
) -> None:
    """Also where other layers read it."""
    path: Path = request.getfixturevalue(folder_of)
    settings, counter = SETTINGS[name]
    settings = settings.copy()
    if "speculative_config" in settings:
        settings["speculative_config"] = _speculation(path, **settings["speculative_config"])
    settings["num_blocks"] = few if "num_blocks" in settings else 64
    settings["max_num_batched_tokens"] = 10
    model = load_model(path, attention_backend=executor)
    with closing(make_engine(model, StepMode.OVERLAPPED, **settings)) as engine:
        want = of_all_tokens(folder_of, executor, settings.get("kv_cache_dtype", "auto"))
        assert run(engine) == want
        assert engine.stats().counters[counter]


def test_a_draft_whose_layers_differ_in_heads_is_refused(shared: Path) -> None:
    draft = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(shared)}
    with pytest.raises(ConfigError, match="Gemma4ForCausalLM has layers with different heads"):
        make_engine(load_model(shared), speculative_config=msgspec.json.encode(draft).decode())


def test_layers_that_read_other_ones_keys_and_values_take_no_memory(
    shared: Path, tmp_path: Path
) -> None:
    """Nor does their number change a block: those of the first three layers alone are as long."""
    first = {"layer_types": [SLIDING, FULL, FULL], "num_kv_shared_layers": 1}
    own = {"layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 0}
    write_random_checkpoint(tmp_path / "own", replace(SHARED, extra={**SHARED.extra, **own}))
    few = replace(SHARED, num_layers=3, extra={**SHARED.extra, **first})
    write_random_checkpoint(tmp_path / "few", few)
    sizes = {}
    for name, path in (("shared", shared), ("own", tmp_path / "own"), ("few", tmp_path / "few")):
        engine = make_engine(load_model(path), num_blocks=None, max_model_len=64, max_num_seqs=2)
        assert engine.kv_memory is not None
        sizes[name] = engine.layout.num_layers, engine.kv_memory.num_bytes
        engine.close()
    assert [num for num, _ in sizes.values()] == [3, 5, 2]
    assert sizes["few"][1] <= sizes["shared"][1] < sizes["own"][1]


@pytest.mark.parametrize("hold", [False, True])
def test_a_long_sequence_takes_a_window_and_a_step(windowed: Path, hold: bool) -> None:
    engine = make_engine(
        load_model(windowed), num_blocks=200, max_num_batched_tokens=16, max_num_seqs=1
    )
    full, sliding, other = engine.layout.groups
    assert (full.window, sliding.window, other.window) == (0, 6, 6)
    shown = describe_groups(engine.layout, 200, 16)
    assert shown[:2] == [
        "full: 2 layers, 50 blocks for 200 tokens",
        "window of 6: 1 layers, 7 blocks for 200 tokens",
    ]
    engine.add(make_request("long", range(3, 203), max_tokens=40, hold_blocks=hold))
    most = 0
    while engine.has_work():
        engine.step()
        engine.check_integrity()
        stats = engine.stats()
        most = max(most, engine.num_blocks - engine._pool.num_free)
        assert stats.num_running <= 1
    # A window and a step reach into 7 blocks at most; what a peer will read is kept besides.
    assert most <= 240 // 4 + 2 * (7 + (3 if hold else 0))
    if hold:
        engine.release("long")
    assert engine._pool.num_free == engine.num_blocks
    engine.close()


@pytest.mark.parametrize("num_filled", [100, 106, 107, 108])
def test_a_window_lacks_blocks_that_another_sequence_still_reads(
    windowed: Path, num_filled: int
) -> None:
    """The blocks in front of its window are released, but not free: the pool may have no others."""
    asked = make_request("longer", range(3, 99), max_tokens=4, ignore_eos=True)
    model = load_model(windowed)
    roomy = make_engine(model)
    want = generate(roomy, asked).tokens("longer")
    roomy.close()
    engine = make_engine(model, num_blocks=72, max_num_batched_tokens=16)
    for name, prompt in [("held", range(3, 59)), ("filler", range(200, 200 + num_filled))]:
        generate(engine, make_request(name, prompt, max_tokens=1, hold_blocks=True))
    assert generate(engine, asked).tokens("longer") == want
    engine.release("held")
    engine.release("filler")
    assert engine._pool.num_free == engine.num_blocks
    engine.close()


def _speculation(folder: Path, method: str, **fields: Any) -> str:
    model = {"draft_model": folder / "draft", "eagle3": folder / "eagle3"}.get(method)
    own = {"method": method, "num_speculative_tokens": 3, "adaptive": False} | fields
    if model is not None:
        own["model"] = str(model)
    return msgspec.json.encode(own).decode()
