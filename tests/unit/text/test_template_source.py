"""A chat template may be given as a file, or as its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError
from shared.text.template_source import read_template

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}é")
    assert read_template(str(file)) == "{{ messages }}é"


@pytest.mark.parametrize("text", ["{{ messages[0].content }}", "no variable,\ntwo lines"])
def test_a_text_is_the_template(text: str) -> None:
    assert read_template(text) == text


@pytest.mark.parametrize("word", ["none.jinja", "."])
def test_another_word_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_template(word)
