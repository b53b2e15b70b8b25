"""The SDK's embeddings: arrays as they are, and errors before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baton_client import Embeds, InvalidRequestError
from baton_client.options import generate_request


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_array_is_a_prompt(dtype: str) -> None:
    array = np.arange(6, dtype=dtype).reshape(3, 2)
    sent = generate_request(Embeds.of(array[::-1]), {}).prompt.embeds
    assert (sent.dtype, sent.width) == (dtype, 2)
    assert np.array_equal(np.frombuffer(sent.rows, dtype).reshape(3, 2), array[::-1])


@pytest.mark.parametrize(
    "array",
    [np.ones(3, "float32"), np.ones((2, 2)), np.ones((2, 2), "int32"), [[1.0]], None],
)
def test_other_values_are_refused(array: Any) -> None:
    with pytest.raises(InvalidRequestError) as error:
        Embeds.of(array)
    assert error.value.param == "prompt"


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": b"", "width": 1},
        {"rows": bytes(4), "width": 0},
        {"rows": bytes(6), "width": 1},
        {"rows": bytes(4), "width": 1, "dtype": "int8"},
    ],
)
def test_rows_must_be_whole(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Embeds(**fields)


def test_any_dtype_can_be_sent_as_bytes() -> None:
    sent = generate_request(Embeds(rows=bytes(8), width=2, dtype="bfloat16"), {}).prompt.embeds
    assert (sent.dtype, sent.width, sent.rows) == ("bfloat16", 2, bytes(8))
