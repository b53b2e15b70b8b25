"""A family in code of the user's own: the one of the guide, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError
from shared.model.families.registry import ARCHITECTURES, FAMILIES, register_named
from shared.model.loader import load_model
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from tests.fakes.model.paged_driver import PagedDriver
from tests.fakes.model.transformers_models import random_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "docs" / "guides" / "model-family.md"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of Python's path with the guide's file as the module `own_maple`."""
    block = re.search(r"```python\n(\"\"\"Maple.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    assert block is not None
    (tmp_path / "own_maple.py").write_text(block[1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_maple", None)
    FAMILIES.pop("MapleForCausalLM", None)
    ARCHITECTURES.pop("maple", None)


def test_a_named_family_is_loaded_like_those_of_baton(package: Path) -> None:
    register_named("own_maple:MAPLE")
    extra = {"hidden_act": "gelu"}
    write_random_checkpoint(package / "model", CheckpointSpec(architecture="maple", extra=extra))
    prompt, answers = random_prompt(20, vocab_size=512, seed=1), []
    for impl in ("torch", "native"):
        model = load_model(package / "model", model_impl=impl).model
        assert model.spec.architecture == "MapleForCausalLM"
        answers += PagedDriver(model, block_size=8, chunk=13).generate([prompt], 8)[0]
    assert answers[0] == answers[1]


def test_installed_packages_bring_families(package: Path) -> None:
    info = package / "own_maple-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-maple\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[baton.models]\nmaple = own_maple:MAPLE\n")
    code = "from shared.model.families.registry import ARCHITECTURES; print(ARCHITECTURES['maple'])"
    path = os.pathsep.join((str(package), *sys.path))
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "MapleForCausalLM\n"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:X", "model class 'no_such_module:X': No module named 'no_such_module'"),
        ("own_maple:OAK", "has no attribute 'OAK'; it is like package.module:NAME"),
        ("own_maple:describe", "is a function, not a Family"),
    ],
)
def test_a_name_without_a_family_is_refused(package: Path, path: str, message: str) -> None:
    assert package.is_dir()
    with pytest.raises(ConfigError, match=message):
        register_named(path)
