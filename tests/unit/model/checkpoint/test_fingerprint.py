"""The fingerprint is the same everywhere and differs when the model does."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from shared.model.loader import load_model
from tests.unit.model.checkpoints import edit_json, write

if TYPE_CHECKING:
    from pathlib import Path


def of(path: Path, **options: str) -> str:
    return load_model(path, **options).fingerprint  # type: ignore[arg-type]


def test_it_is_a_digest_that_does_not_depend_on_where_the_files_are(tmp_path: Path) -> None:
    here = write(tmp_path / "here", num_shards=2)
    there = tmp_path / "there"
    shutil.copytree(here, there)
    edit_json(there / "config.json", _name_or_path="/elsewhere", transformers_version="4.57.1")
    assert of(here) == of(there)
    assert len(bytes.fromhex(of(here))) == 32


def test_weights_dtype_config_and_origin_each_count(tmp_path: Path) -> None:
    base = write(tmp_path / "base", seed=1)
    other_seed = write(tmp_path / "seed", seed=2)
    other_config = write(tmp_path / "config", seed=1)
    edit_json(other_config / "config.json", rope_theta=1234.0)
    fingerprints = [
        of(base),
        of(other_seed),
        of(other_config),
        of(base, dtype="bfloat16"),
        of(base, load_format="dummy"),
    ]
    assert len(set(fingerprints)) == len(fingerprints)


def test_auto_is_the_same_as_naming_the_dtype(tmp_path: Path) -> None:
    write(tmp_path, dtype="bfloat16")
    assert of(tmp_path) == of(tmp_path, dtype="bfloat16")


def test_one_byte_of_the_weights_counts(tmp_path: Path) -> None:
    write(tmp_path)
    before = of(tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert of(tmp_path) != before
