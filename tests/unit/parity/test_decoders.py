"""The list of transformers' decoders is complete and says what was found, and can say no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.model.families.registry import ARCHITECTURES
from tests.parity.cells import REFUSED
from tests.parity.decoders.page import PAGE, page, stored_results
from tests.parity.decoders.trial import FAMILY, MODULE, MODULES, UNTRIED, result_of
from tests.parity.oracle import Oracle, WrongAnswerError

if TYPE_CHECKING:
    from collections.abc import Sequence

AGAIN = "`make decoders` finds the results anew"


def test_every_type_has_a_result_and_none_differs() -> None:
    found = stored_results()
    assert list(found) == sorted(MODULES), AGAIN
    assert all(each.startswith((FAMILY, MODULE, REFUSED, UNTRIED)) for each in found.values())
    assert all(found[name] == FAMILY for name in ARCHITECTURES.keys() & found.keys()), AGAIN


def test_the_page_is_that_of_the_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), AGAIN


@pytest.mark.parametrize("model_type", ["bitnet", "exaone", "fuyu", "roberta"])
def test_results_are_as_stored(model_type: str) -> None:
    assert result_of(model_type) == stored_results()[model_type]


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Oracle, __: str, prompt: Sequence[int], *___: object) -> float:
        raise WrongAnswerError(f"prompt of {len(prompt)}")

    monkeypatch.setattr(Oracle, "check", wrong)
    assert result_of("bitnet").startswith("differs")
