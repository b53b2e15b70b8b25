"""Which tokens of a prompt are kept."""

from __future__ import annotations

import pytest

from shared.errors import InvalidRequestError
from shared.generation.truncation import Truncation, read_truncation

IDS = (1, 10, 11, 12, 13)
HEAD = (1,)


@pytest.mark.parametrize(
    ("num", "side", "kept"),
    [
        (3, "left", (11, 12, 13)),
        (3, "right", (1, 10, 11)),
        (3, None, (1, 12, 13)),
        (1, None, (1,)),
        (1, "left", (13,)),
        (5, "left", IDS),
        (9, None, IDS),
        (0, "left", ()),
        (0, None, ()),
        (-1, None, (1, 12, 13)),
        (-1, "right", (1, 10, 11)),
    ],
)
def test_a_side_is_cut_off(num: int, side: str | None, kept: tuple[int, ...]) -> None:
    truncation = read_truncation(num, side)
    assert truncation is not None
    model_len = 4 if num == -1 else 9
    assert truncation.apply(IDS, max_model_len=model_len, head=HEAD) == kept


def test_a_side_alone_asks_for_nothing() -> None:
    assert read_truncation(None, "left") is None


def test_wrong_values_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="at least -1, not -2"):
        Truncation(-2)
    with pytest.raises(InvalidRequestError, match="must be left or right, not 'up'"):
        read_truncation(3, "up")
    with pytest.raises(InvalidRequestError, match="at most 4, this model's") as raised:
        Truncation(5).apply(IDS, max_model_len=4)
    assert raised.value.param == "truncate_prompt_tokens"
