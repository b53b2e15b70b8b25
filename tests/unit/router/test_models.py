from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from services.router.models import ServedModels, read_vocab_size
from shared.errors import ModelNotFoundError
from tests.fakes.scripted.adapters import NamedAdapters
from tests.fakes.text import tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_has_several_names_and_answers_with_the_first() -> None:
    models = ServedModels(names=("a", "b"), vocab_size=5, learn_max_model_len=lambda: 9)
    assert [models.resolve(name).name for name in ("a", "b", "", None)] == ["a"] * 4
    assert models.max_model_len == 9
    with pytest.raises(ModelNotFoundError, match="'c' does not exist; served: a, b"):
        models.resolve("c")


def served(*adapters: str) -> ServedModels:
    return ServedModels(
        names=("a", "b"),
        vocab_size=5,
        learn_max_model_len=lambda: 9,
        adapters=NamedAdapters(*adapters),
    )


def test_an_adapter_answers_with_its_own_name() -> None:
    models = served("sql", "b")
    asked = models.resolve("sql")
    assert (asked.name, asked.adapter) == ("sql", NamedAdapters("sql").find("sql"))
    # A name of the model is never an adapter's.
    assert models.resolve("b").adapter is None
    assert [models.knows(name) for name in ("a", "b", "sql", "c")] == [True, True, True, False]


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(ModelNotFoundError, match=r"served: a, b, sql, web$"):
        served("sql", "web").resolve("c")
    with pytest.raises(ModelNotFoundError, match=r"x24 and 82 more$"):
        served(*(f"x{i}" for i in range(100))).resolve("c")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, 0),
        ({"vocab_size": 100_000}, 100_000),
        ({"vocab_size": 3}, 0),
        ({"text_config": {"vocab_size": 100_000}}, 100_000),
    ],
)
def test_the_model_may_have_more_tokens_than_the_tokenizer(
    tmp_path: Path, config: dict[str, object] | None, expected: int
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = tiny_tokenizer.load()
    assert read_vocab_size(tmp_path, tokenizer) == max(expected, tokenizer.vocab_size)
