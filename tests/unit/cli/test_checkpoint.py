"""`baton doctor` finds what is wrong with a model's folder without loading it."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest

from cli.doctor.checkpoint import check_model
from cli.doctor.finding import Level

if TYPE_CHECKING:
    from pathlib import Path


def write_weights(path: Path, *, num_bytes: int = 16) -> None:
    tensor = {"dtype": "F32", "shape": [num_bytes // 4], "data_offsets": [0, num_bytes]}
    header = json.dumps({"__metadata__": {}, "w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(num_bytes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    write_weights(tmp_path / "model.safetensors")
    return tmp_path


def bad(folder: Path) -> dict[str, str]:
    found = [f for f in check_model(folder) if f.level is not Level.OK]
    assert all(finding.advice for finding in found)
    return {finding.subject: finding.text for finding in found}


def test_a_good_checkpoint_has_no_complaints(folder: Path) -> None:
    assert bad(folder) == {}


@pytest.mark.parametrize(
    ("name", "subject"), [("config.json", "model"), ("tokenizer.json", "tokenizer")]
)
def test_a_missing_or_broken_file_is_named(folder: Path, name: str, subject: str) -> None:
    (folder / name).write_text("{")
    assert name in bad(folder)[subject]
    (folder / name).unlink()
    assert "missing" in bad(folder)[subject]


def test_without_a_chat_template_it_warns(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assert "chat requests will be refused" in bad(folder)["chat template"]
    (folder / "chat_template.jinja").touch()
    assert bad(folder) == {}


def test_weights_that_were_cut_off_are_noticed(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut off" in bad(folder)["weights"]
    path.write_bytes(b"not weights at all")
    assert "not a safetensors file" in bad(folder)["weights"]
    path.write_bytes(b"")
    assert "cannot be read" in bad(folder)["weights"]
    path.unlink()
    assert "no *.safetensors" in bad(folder)["weights"]


def test_a_part_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_weights(folder / "part-1.safetensors")
    assert bad(folder)["weights"] == "part-2.safetensors is missing"
