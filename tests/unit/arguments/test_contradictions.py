"""What contradicts itself or the model is refused before anything is loaded."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from cli.flags.options import Service
from scripts.arguments_page import CONTRADICTIONS
from shared.arguments.translate import translate
from shared.errors import BatonError
from shared.identity import Role
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.offline.engine_args import EngineArgs
from shared.offline.loaded import LoadedModel
from shared.worker.checks import check_worker
from tests.unit.arguments.services import parse

if TYPE_CHECKING:
    from pathlib import Path

LISTED = tomllib.loads(CONTRADICTIONS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, and one with another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    for name, size in (("MODEL", 512), ("OTHER", 600)):
        write_random_checkpoint(root / name, CheckpointSpec(num_layers=1, vocab_size=size))
    return {name: root / name for name in ("MODEL", "OTHER")}


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr("shared.engine.llm.load_model", load)


def words_of(row: dict[str, str], folders: dict[str, Path]) -> list[str]:
    line = row["words"]
    for name, folder in folders.items():
        line = line.replace(name, str(folder))
    return line.split()


def start_worker(words: list[str], model: Path) -> None:
    """What a decode worker does before it loads."""
    check_worker(parse(*words, model=str(model))[Service.DECODE].worker, Role.DECODE)


@pytest.mark.parametrize("row", LISTED["refused"], ids=lambda row: row["words"])
@pytest.mark.usefixtures("unloaded")
def test_they_are_refused_first(row: dict[str, str], folders: dict[str, Path]) -> None:
    words = words_of(row, folders)
    with pytest.raises(BatonError) as refused:
        start_worker(words, folders["MODEL"])
    assert row["reason"] in str(refused.value)
    with pytest.raises(BatonError) as refused:
        LoadedModel(EngineArgs.from_words(folders["MODEL"], words).settings())
    assert row["reason"] in str(refused.value)


@pytest.mark.parametrize("row", LISTED["served"], ids=lambda row: row["words"])
def test_others_are_served(row: dict[str, str], folders: dict[str, Path]) -> None:
    words = words_of(row, folders)
    start_worker(words, folders["MODEL"])
    LoadedModel(EngineArgs.from_words(folders["MODEL"], words).settings()).close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max-num-active-seqs 2 --max-num-seqs 4", "--max-num-seqs 2"),
        ("--max-num-seqs 4 --max-num-active-seqs 2", "--max-num-seqs 2"),
        ("--max-num-seqs 4 --max-num-active-seqs None", "--max-num-seqs 4"),
        ("--max-num-active-seqs 2 --max-num-seqs 4 model", "model --max-num-seqs 2"),
        (
            "--max-num-scheduled-tokens 1k --max-num-batched-tokens 1K",
            "--max-num-batched-tokens 1k",
        ),
        (
            "--max-cudagraph-capture-size 4 --cudagraph-capture-sizes 1 4",
            "--cuda-graph-sizes 1 4",
        ),
    ],
)
def test_the_lower_of_two_bounds_counts(words: str, expected: str) -> None:
    assert translate(words.split()).words == tuple(expected.split())


@pytest.mark.parametrize("word", ["7", "[1]", "{"])
def test_what_is_no_object_has_no_keys(word: str) -> None:
    with pytest.raises(BatonError, match="--speculative-config"):
        translate(["--spec-tokens", "3", "--speculative-config", word])
