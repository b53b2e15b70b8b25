"""How the wheel is made of the repository: which imports move, and which files go in."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from scripts.wheel.imports import ImportFormError, moved_imports
from scripts.wheel.layout import MOVED, PACKAGE, PLACES, wheel_files
from shared.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from shared.kv import pool\n", "from baton.shared.kv import pool\n"),
        ("from cli import places\n", "from baton.cli import places\n"),
        ("import shared.kv as kv, os\n", "import baton.shared.kv as kv, os\n"),
        ("import os, shared.kv as kv\n", "import os, baton.shared.kv as kv\n"),
        (
            "def f():\n    'é'; from kernels.rope import (\n        rope,\n    )\n",
            "def f():\n    'é'; from baton.kernels.rope import (\n        rope,\n    )\n",
        ),
        ("from baton.v1 import common_pb2\n", "from baton.v1 import common_pb2\n"),
        ("from sharedness import x\n", "from sharedness import x\n"),
        ("text = 'from shared import x'\n", "text = 'from shared import x'\n"),
    ],
)
def test_imports_of_ours_move_below_the_package(before: str, after: str) -> None:
    assert moved_imports(before, "a.py") == after


def test_an_import_that_binds_a_name_which_the_wheel_lacks_is_refused() -> None:
    with pytest.raises(ImportFormError, match=r"a\.py:2: `import shared\.kv` binds a name"):
        moved_imports("import os\nimport shared.kv\n", "a.py")


def test_every_top_level_name_of_the_wheel_moves() -> None:
    below = {Path(target).parts[1] for target in PLACES.values() if "/" in target}
    assert below == set(MOVED)


def test_files_have_one_place_each_and_caches_none() -> None:
    targets = [placed.target for placed in wheel_files(ROOT)]
    assert len(targets) == len(set(targets))
    assert all(target.startswith(f"{PACKAGE}/") for target in targets)
    assert not [target for target in targets if "__pycache__" in target]


def test_the_distribution_has_the_version_of_the_software() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["version"] == VERSION


def test_wheels_are_built_by_the_version_that_the_tests_have() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dev = pyproject["project"]["optional-dependencies"]["dev"]
    assert set(pyproject["build-system"]["requires"]) <= set(dev)
