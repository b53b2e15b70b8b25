"""Reading requirements out of pyproject.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.dependencies import requirements

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pyproject(tmp_path: Path) -> Path:
    path = tmp_path / "pyproject.toml"
    path.write_text(
        '[project]\ndependencies = ["a>=1", "b"]\n'
        '[project.optional-dependencies]\nx = ["b", "c; sys_platform == \'linux\'"]\n'
    )
    return path


def test_groups_are_joined_in_order_without_repeats(pyproject: Path) -> None:
    assert requirements(pyproject, ["-", "x"]) == ["a>=1", "b", "c; sys_platform == 'linux'"]


def test_an_unknown_extra_is_an_error(pyproject: Path) -> None:
    with pytest.raises(KeyError, match="nope"):
        requirements(pyproject, ["nope"])
