"""`baton doctor` finds what is wrong with a model's folder without loading it.

What workers and routers would refuse it for is tested in test_precheck.py, with what `up` says.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from cli.doctor.checkpoint import check_model
from cli.doctor.finding import Level
from cli.errors import CommandError
from cli.places import SHIPPED_MODEL
from cli.start.model_folder import resolve_model
from tests.fakes.checkpoints.gguf import add_tokenizer, export

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(SHIPPED_MODEL, tmp_path / "model")


def bad(folder: Path) -> dict[str, str]:
    found = [f for f in check_model(folder) if f.level is not Level.OK]
    assert all(finding.advice for finding in found)
    return {finding.subject: finding.text for finding in found}


def test_a_good_checkpoint_has_no_complaints(folder: Path) -> None:
    assert bad(folder) == {}


def test_without_a_chat_template_it_warns(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    template = settings.pop("chat_template")
    path.write_text(json.dumps(settings))
    assert "chat requests will be refused" in bad(folder)["chat template"]
    (folder / "chat_template.jinja").write_text(template)
    assert bad(folder) == {}


def test_a_part_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"a": "part-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "part-1.safetensors is missing" in bad(folder)["model"]


def test_an_empty_folder(tmp_path: Path) -> None:
    found = bad(tmp_path)
    assert "config.json" in found["model"]
    assert "tokenizer.json" in found["tokenizer"]


def test_a_gguf_file_is_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path / "cache"))
    tokenizer = partial(add_tokenizer, SHIPPED_MODEL)
    model = export(SHIPPED_MODEL, tmp_path / "Small-Q8.gguf", tokenizer=tokenizer)
    assert resolve_model(model, None) == (model, "Small-Q8")
    assert bad(model) == {}
    model.write_bytes(model.read_bytes()[:-1])
    assert "Small-Q8.gguf is damaged or truncated" in bad(model)["model"]
    with pytest.raises(CommandError, match="is damaged or truncated"):
        resolve_model(model, None)


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path / "cache"))
    model = export(SHIPPED_MODEL, tmp_path / "model.gguf")
    assert "set BATON_CACHE_DIR to a folder for it" in bad(model)["model"]
