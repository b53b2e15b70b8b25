"""How many blocks there are, and the longest sequence that they hold."""

from __future__ import annotations

import pytest

from shared.errors import ConfigError
from tests.fakes.engines import make_engine


def test_the_pool_must_hold_the_configured_length() -> None:
    with pytest.raises(ConfigError, match="num_blocks to at least 25"):
        make_engine(num_blocks=24, max_model_len=100)
    assert make_engine(num_blocks=24).max_model_len == 96
    with pytest.raises(ConfigError, match="ends at 4096"):
        make_engine(num_blocks=2000, max_model_len=5000)


def test_the_pool_is_sized_by_bytes_or_by_what_is_free() -> None:
    assert make_engine(num_blocks=None, kv_cache_memory_bytes=64 * 10 + 1).num_blocks == 10
    assert make_engine(num_blocks=None, max_model_len=40).num_blocks == 80
    with pytest.raises(ConfigError, match="no room"):
        make_engine(num_blocks=None, kv_cache_memory_bytes=10)
