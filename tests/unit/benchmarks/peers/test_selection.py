"""What a run is told to measure."""

from __future__ import annotations

import pytest

from benchmarks.peers.run.runner import EVERY_METRIC
from benchmarks.peers.run.selection import ALL, default_parts, full_parts, narrow
from shared.errors import ConfigError

NOTHING: dict[str, tuple[str, ...]] = {"sections": (), "models": (), "systems": (), "measures": ()}


def test_every_selection_knows_its_systems_and_metrics() -> None:
    for part in (*default_parts(), *full_parts()):
        for name in part.systems:
            assert ALL[name]().name == name
            assert ALL[name]().section == part.section
        for measure in part.measures:
            assert set(measure.metrics) <= set(EVERY_METRIC)


def test_names_of_systems_can_be_listed_with_commas() -> None:
    assert not [name for name in ALL if "," in name]


def test_a_selection_is_narrowed_by_names() -> None:
    (part,) = narrow(
        default_parts(), **(NOTHING | {"models": ("medium",), "systems": ("vllm", "baton")})
    )
    assert (part.section, part.model, part.systems) == ("engine", "medium", ("baton", "vllm"))
    parts = default_parts()
    assert narrow(parts, **NOTHING) == parts


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"systems": ("sglang",)}, "no system is called 'sglang'"),
        ({"measures": ("speed",)}, "no measure is called 'speed'"),
        ({"models": ("large",)}, "nothing is left"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(
    choice: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        narrow(default_parts(), **(NOTHING | choice))
