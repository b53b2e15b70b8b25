"""How many blocks there are, and the longest sequence that they hold."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from shared.errors import ConfigError
from tests.fakes.engine.engines import generate, make_engine, make_request
from tests.fakes.engine.model import FakeLoadedModel, make_spec


def test_the_pool_must_hold_the_configured_length() -> None:
    says = (
        r"max_model_len is 100, but 24 KV blocks of 64 bytes hold a sequence of 96 tokens: "
        r"set num_blocks to at least 25 \(kv_cache_memory_bytes 1600\), .*at most 96$"
    )
    with pytest.raises(ConfigError, match=says):
        make_engine(num_blocks=24, max_model_len=100)
    with pytest.raises(ConfigError, match=says):
        make_engine(num_blocks=None, kv_cache_memory_bytes=24 * 64, max_model_len=100)
    assert make_engine(num_blocks=24).max_model_len == 96
    with pytest.raises(ConfigError, match="ends at 4096"):
        make_engine(num_blocks=2000, max_model_len=5000)


def test_a_pool_without_room_for_one_sequence_is_refused() -> None:
    """A sequence has a block of KV, and one with a state, two once it is longer."""
    loaded = FakeLoadedModel(spec=make_spec(num_states=1))
    says = "^1 KV blocks of .* a sequence of 0 tokens: set num_blocks to at least 2 "
    with pytest.raises(ConfigError, match=says):
        make_engine(loaded, num_blocks=1)
    engine = make_engine(loaded, num_blocks=2)
    assert engine.max_model_len == engine.layout.block_size
    assert len(generate(engine, make_request("a", [1, 2], max_tokens=1)).tokens("a")) == 1
    engine.close()


def test_the_pool_is_sized_by_bytes_or_by_what_is_free() -> None:
    assert make_engine(num_blocks=None, kv_cache_memory_bytes=64 * 10 + 1).num_blocks == 10
    assert make_engine(num_blocks=None, max_model_len=40).num_blocks == 80
    with pytest.raises(ConfigError, match=r"^0 KV blocks of 64 bytes hold a sequence of 0 tokens"):
        make_engine(num_blocks=None, kv_cache_memory_bytes=10)


def test_kv_in_8_bits_takes_its_scales_along() -> None:
    """A quarter of float32 and four bytes per token and head; other blocks, other names."""
    plain, *quantized = (
        make_engine(kv_cache_dtype=name, num_blocks=4) for name in ("auto", "int8", "fp8")
    )
    layout = plain.layout
    (group,) = layout.groups
    num_rows = 2 * group.num_layers * group.num_kv_heads * layout.block_size
    assert plain.layout.block_bytes == num_rows * 4 * group.head_dim
    for engine in quantized:
        assert engine.layout.block_bytes == num_rows * (group.head_dim + 4)
        assert engine.kv_memory is not None
        assert engine.kv_memory.num_bytes == 4 * engine.layout.block_bytes
    names = [engine.layout.dtype for engine in (plain, *quantized)]
    assert names == ["float32", "int8", "float8_e4m3fn"]
    assert len({engine.namespace for engine in (plain, *quantized)}) == 3
    for engine in (plain, *quantized):
        engine.close()


@pytest.mark.parametrize(
    ("name", "reason"), [("fp8_e5m2", "half as precise"), ("int3", "known: auto, checkpoint")]
)
def test_other_kv_dtypes_are_refused_with_a_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_engine(kv_cache_dtype=name)


def test_scales_must_lie_on_whole_words() -> None:
    with pytest.raises(ConfigError, match="no multiple of 4"):
        make_engine(kv_cache_dtype="int8", block_size=1)


def test_blocks_that_kv_hardly_fills_are_named_at_the_start() -> None:
    """A block is as long as a state of 64 bytes; a token's KV takes 16."""
    loaded = FakeLoadedModel(spec=make_spec(num_states=1))
    with capture_logs() as logs:
        make_engine(loaded, block_size=1).close()
    (line,) = [each for each in logs if each["event"] == "kv_blocks_unused"]
    assert line["set"] == "--block-size 2"
    with capture_logs() as logs:
        make_engine(loaded, block_size=2).close()
    assert not [each for each in logs if each["event"] == "kv_blocks_unused"]


def test_a_long_prompt_leaves_a_state_every_2048_tokens() -> None:
    """Prompts that part behind it go on from there, though none before them parted so early."""
    engine = make_engine(FakeLoadedModel(spec=make_spec(num_states=1)), num_blocks=800)
    prompt = [number % 90 for number in range(2500)]
    generate(engine, make_request("a", prompt, max_tokens=1))
    other = [*prompt[:2100], *reversed(prompt[2100:])]
    (admitted,) = generate(engine, make_request("b", other, max_tokens=1)).admitted("b")
    assert admitted.num_cached_tokens == 2048
    engine.close()
