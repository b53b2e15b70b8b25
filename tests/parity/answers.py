"""The outcomes of a cell: one for each place."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.loader import load_model
from tests.parity import handed_over, one_engine, tiers, worker_lost
from tests.parity.cells import REFUSED
from tests.parity.judge import Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.parity.cells import Cell
    from tests.parity.oracle import Oracle

#: By name: asks for the answers of a cell's checkpoint, and has them judged.
PLACES: Mapping[str, Callable[[Cell, Path, Judge, Path], None]] = {
    "one engine": one_engine.answer,
    "handed over": handed_over.answer,
    "from tiers": tiers.answer,
    "worker lost": worker_lost.answer,
}


def outcomes(cell: Cell, oracle: Oracle, folder: Path) -> list[str]:
    """Return the cell's outcome in each place."""
    torch.set_num_threads(1)
    try:
        load_model(oracle.checkpoint, **cell.settings)
    except (ConfigError, ModelLoadError) as error:
        said = str(error).replace(str(oracle.checkpoint), "the model")
        return [REFUSED + re.split("[\n;]", said)[0]] * len(PLACES)
    judge = Judge(cell, oracle)
    return [
        judge.outcome(partial(answer, cell, oracle.checkpoint, judge, folder))
        for answer in PLACES.values()
    ]
