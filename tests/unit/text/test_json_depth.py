"""The depth of JSON is that which a parser finds, in a time that grows with its length only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.text import json_depth
from shared.text.json_depth import is_too_deep

_TEXTS = st.text(alphabet='a"\\[]{}')
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3)
)


def _depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inside), default=0)


@given(value=_VALUES, chunk_bytes=st.integers(1, 9))
def test_depth_is_that_of_the_value(value: Any, chunk_bytes: int) -> None:
    text, depth = json.dumps(value).encode(), _depth(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "CHUNK_BYTES", chunk_bytes)
        assert not is_too_deep(text, depth)
        assert not depth or is_too_deep(text, depth - 1)


def test_a_string_that_never_ends_is_searched_once() -> None:
    # A search that begins again at each of the quotes takes an hour.
    assert not is_too_deep(b"[" * 65 + b'"' + rb"\"" * 500_000, 65)
