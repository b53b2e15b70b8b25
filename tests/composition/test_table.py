"""The rows cover what they should, and the page says what the rows do."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from shared.errors import ConfigError, ModelLoadError
from shared.model.loader import load_model
from shared.model.sharding.split import Split
from shared.ranks.ring_pipe import PipeEnd, RingPipe, pipe_file
from shared.ranks.shared_memory import SharedMemoryCollective, collective_file
from tests.composition.axes import AXES
from tests.composition.cover import NUM_SAMPLED, covered, rows, sample, wanted
from tests.composition.page import PAGE, page
from tests.composition.rules import DIVIDED, RULES, SPREAD, STAGED
from tests.composition.settings import weight_options

if TYPE_CHECKING:
    from tests.composition.rules import Rule
    from tests.composition.settings import Models

SETTINGS = ("family", "weights", "KV format", "executor")


def refused_settings() -> list[tuple[Rule, dict[str, str]]]:
    """What an engine must refuse, and with it every worker."""
    found = []
    for rule in RULES:
        axes, values = zip(*rule.sides, strict=True)
        if rule.refused is not None and set(axes) <= set(SETTINGS):
            found += [(rule, dict(zip(axes, each, strict=True))) for each in product(*values)]
    return found


def refused_parts(*ranks: tuple[str, tuple[str, ...]]) -> list[tuple[Rule, dict[str, str]]]:
    """What a rank must refuse to load; of a third axis the first value."""
    found = []
    for rule in RULES:
        axes = {axis for axis, _ in rule.sides[1:]}
        if rule.first in ranks and rule.refused is not None and axes <= set(SETTINGS):
            axis, values = rule.second
            third = {} if rule.third is None else {rule.third[0]: rule.third[1][0]}
            found += [(rule, {axis: value, **third}) for value in values]
    return found


def test_the_rows_cover_every_pair() -> None:
    again = "python -m tests.composition.cover finds the rows anew"
    assert all(row.keys() == AXES.keys() for row in rows()), again
    assert wanted() <= covered(rows()), again


def test_no_row_breaks_a_rule() -> None:
    assert not [row for row in rows() if any(rule.breaks(row) for rule in RULES)]


@pytest.mark.parametrize("axis", ["adapter", "task", "executor"])
def test_the_sample_has_every_value_of(axis: str) -> None:
    assert {row[axis] for row in sample(NUM_SAMPLED)} == set(AXES[axis])


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make composition writes it"


@pytest.mark.parametrize(("rule", "pair"), refused_settings(), ids=str)
def test_what_is_refused_is_refused_by_name(
    rule: Rule, pair: dict[str, str], models: Models
) -> None:
    row = {axis: values[0] for axis, values in AXES.items()}
    with pytest.raises((ConfigError, ModelLoadError), match=rule.refused):
        models.engine(row | pair)


@pytest.mark.parametrize(("rule", "values"), refused_parts(DIVIDED, SPREAD), ids=str)
def test_what_ranks_do_not_divide_is_refused_by_name(
    rule: Rule, values: dict[str, str], models: Models
) -> None:
    with (
        closing(collective_file(2)) as file,
        closing(SharedMemoryCollective(file.fd, 0, 2, timeout_s=1.0)) as collective,
    ):
        refuse(rule, values, models, split=Split(rank=0, size=2), collective=collective)


@pytest.mark.parametrize(("rule", "values"), refused_parts(STAGED, SPREAD), ids=str)
def test_what_stages_do_not_divide_is_refused_by_name(
    rule: Rule, values: dict[str, str], models: Models
) -> None:
    with (
        closing(pipe_file()) as file,
        closing(RingPipe(None, PipeEnd(file.fd, (0, 1)), timeout_s=1.0)) as pipe,
    ):
        split = Split(rank=0, size=1, stage=0, num_stages=2)
        refuse(rule, values, models, split=split, pipe=pipe)


def refuse(rule: Rule, values: dict[str, str], models: Models, **part: Any) -> None:
    """A rank does not load what the rule says."""
    row = {axis: some[0] for axis, some in AXES.items()} | values
    with pytest.raises((ConfigError, ModelLoadError), match=rule.refused):
        load_model(
            models.checkpoint(row["family"], row["weights"]),
            model_impl=row["executor"],
            **weight_options(row),
            **part,
        )
