"""The parity table is complete and says what was found, and its judge can say no."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from shared.model.families.registry import FAMILIES
from tests.fakes.worker.live_worker import LiveWorker, Reply
from tests.parity import tiers
from tests.parity.answers import PLACES, outcomes
from tests.parity.cells import CASES, DIFFERS, EQUAL, REFUSED, Cell, cells_of, stored_outcomes
from tests.parity.judge import NUM_TOKENS, PROMPTS, Judge
from tests.parity.one_engine import engine_of
from tests.parity.oracle import oracle_of
from tests.parity.page import PAGE, page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AGAIN = "`make parity` finds the outcomes anew"


def test_every_cell_has_an_outcome_and_none_differs() -> None:
    found = stored_outcomes()
    assert list(found) == list(CASES), AGAIN
    for case, cells in found.items():
        assert set(cells) == {cell.key for cell in cells_of(case)}, AGAIN
        for own in cells.values():
            assert all(outcome == EQUAL or outcome.startswith(REFUSED) for outcome in own), case
    known = {case for case, (model_type, _) in CASES.items() if model_type in FAMILIES}
    assert all(EQUAL in found[case]["torch float32"] for case in known)


def test_the_page_is_that_of_the_outcomes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), AGAIN


@pytest.mark.parametrize(
    "cell",
    [
        Cell("gemma3", "native", "int8"),
        Cell("qwen3_5", "torch", "bfloat16"),
        Cell("apertus", "native", "float32"),
    ],
    ids=lambda cell: f"{cell.case} {cell.key}",
)
def test_cells_are_as_stored(cell: Cell, tmp_path: Path) -> None:
    oracle = oracle_of(cell.case, tmp_path / "model")
    assert outcomes(cell, oracle, tmp_path) == stored_outcomes()[cell.case][cell.key]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_wrong_tokens_are_seen(precision: str, tmp_path: Path) -> None:
    oracle = oracle_of("llama", tmp_path / "model")
    judge = Judge(Cell("llama", "torch", precision), oracle)
    for wrong in (5, 6, 7):
        answer = [wrong] * NUM_TOKENS
        found = judge.outcome(functools.partial(judge.check, PROMPTS[-1], answer))
        assert found.startswith(DIFFERS)


def test_a_window_that_is_off_by_one_differs(tmp_path: Path) -> None:
    oracle = oracle_of("mistral-window", tmp_path / "model")
    config = oracle.checkpoint / "config.json"
    config.write_text(config.read_text().replace('"sliding_window": 19', '"sliding_window": 18'))
    cell = Cell("mistral-window", "torch", "float32")
    assert outcomes(cell, oracle, tmp_path)[0].startswith(DIFFERS)


def test_a_token_that_the_next_worker_does_not_get_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = LiveWorker.ask

    async def forgetful(*args: Any, resumed: Sequence[int] = (), **options: Any) -> Reply:
        return await ask(*args, resumed=resumed[:-1], **options)

    monkeypatch.setattr(LiveWorker, "ask", forgetful)
    assert outcome_in("worker lost", tmp_path).startswith(DIFFERS)


def test_a_prefix_that_never_left_the_pool_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = {"num_blocks": 400}
    monkeypatch.setattr(tiers, "engine_of", lambda own, **few: engine_of(own, **(few | roomy)))
    assert "from the tier host" in outcome_in("from tiers", tmp_path)


def outcome_in(place: str, folder: Path) -> str:
    cell = Cell("llama", "native", "float32")
    oracle = oracle_of(cell.case, folder / "model")
    judge = Judge(cell, oracle)
    return judge.outcome(functools.partial(PLACES[place], cell, oracle.checkpoint, judge, folder))
