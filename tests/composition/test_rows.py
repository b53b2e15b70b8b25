"""I19: features beside each other, on real processes, token for token as one engine.

A sample of the rows; all of them with `make composition`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.composition.cover import NUM_SAMPLED, rows, sample
from tests.composition.system import System

if TYPE_CHECKING:
    from pathlib import Path

    from tests.composition.axes import Row
    from tests.composition.settings import Models

#: Processes start, compile and are killed beside other tests.
pytestmark = pytest.mark.timeout(240)


def chosen() -> tuple[Row, ...]:
    return rows() if os.environ.get("BATON_COMPOSITION") == "full" else sample(NUM_SAMPLED)


@pytest.mark.parametrize("row", chosen(), ids=lambda row: ", ".join(row.values()))
def test_every_token_is_the_engines(row: Row, models: Models, tmp_path: Path) -> None:
    if row["connector"] == "nixl" and find_spec("nixl") is None:
        pytest.skip("the extra `nixl` is missing")
    system = System(row, models, tmp_path)
    try:
        system.run()
    finally:
        codes = system.stop()
    assert codes == {0}
