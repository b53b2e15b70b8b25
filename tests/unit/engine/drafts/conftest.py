"""A target with every kind of draft for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shared.model.drafts.random_heads import HeadSpec, write_random_head, write_sliced_checkpoint
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.checkpoints import counting
from tests.fakes.engine.engines import make_engine

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.engine import Engine
    from shared.model.loaded import LoadedModel

NUM_DRAFTS = 4
#: Drafts with weights, by what the fixtures call them.
DRAFTS = ("draft_model", "sliced", "eagle", "eagle3", "medusa")


@dataclass(frozen=True)
class Drafts:
    """A loaded target, and the directories of its drafts."""

    target: LoadedModel
    directory: Path
    folder: Path

    def settings(self, draft: str, **fields: Any) -> str:
        """`speculative_config`."""
        method = "draft_model" if draft == "sliced" else draft
        path = self.directory if draft == "draft_model" else self.folder / draft
        settings = {"method": method, "model": str(path), "num_speculative_tokens": NUM_DRAFTS}
        return json.dumps({**settings, "adaptive": False, **fields})


def engine_with(drafts: Drafts, speculative: str | None, **settings: Any) -> Engine:
    """An engine on the target; `settings` are fields of EngineConfig."""
    settings = {"block_size": 16, "num_blocks": 200, **settings}
    return make_engine(drafts.target, speculative_config=speculative, **settings)


@pytest.fixture(scope="session")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    """Random weights: heads are mostly wrong."""
    folder = tmp_path_factory.mktemp("drafts")
    target = folder / "target"
    write_random_checkpoint(target, CheckpointSpec(num_layers=4, vocab_size=300))
    write_sliced_checkpoint(folder / "sliced", target, 1)
    for method in ("eagle", "medusa"):
        write_random_head(folder / method, target, HeadSpec(method=method, num_heads=NUM_DRAFTS))
    spec = HeadSpec(method="eagle3", draft_vocab_size=120, has_embedding=False)
    write_random_head(folder / "eagle3", target, spec)
    return Drafts(load_model(target), target, folder)


@pytest.fixture(scope="session")
def counting_drafts(tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    """Heads that are right."""
    folder = tmp_path_factory.mktemp("counting")
    counting.write_counting_target(folder / "target")
    counting.write_counting_eagle(folder / "eagle")
    counting.write_counting_eagle3(folder / "eagle3")
    counting.write_counting_medusa(folder / "medusa", NUM_DRAFTS)
    return Drafts(load_model(folder / "target"), folder / "target", folder)
