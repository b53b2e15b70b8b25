"""`baton make-model` writes what its options say."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from cli.errors import EXIT_USAGE
from cli.make_model import make_model
from shared.model.loader import load_model

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer()
app.command()(make_model)
SMALL = ("--layers", "2", "--hidden", "48", "--heads", "4", "--head-dim", "16", "--ffn", "32")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_options_become_the_model(tmp_path: Path) -> None:
    code, output = run(
        str(tmp_path), *SMALL, "--architecture", "qwen3", "--kv-heads", "1", "--vocab", "300",
        "--max-len", "256", "--dtype", "float32", "--no-tie", "--shards", "2",
        "--rope-type", "yarn", "--rope-factor", "2", "--extra", '{"rms_norm_eps": 1e-5}',
    )  # fmt: skip
    assert code == 0, output
    spec = load_model(tmp_path).spec
    attention = spec.attention
    assert spec.architecture == "Qwen3ForCausalLM"
    sizes = (
        spec.num_layers,
        spec.hidden_size,
        attention.num_heads,
        attention.num_kv_heads,
    )
    assert sizes == (2, 48, 4, 1)
    assert (attention.head_dim, spec.inner_size, spec.vocab_size) == (
        16,
        32,
        300,
    )
    assert (spec.dtype, spec.is_tied) == ("float32", False)
    assert (attention.rope.rope_type, attention.rope.original_max_positions) == (
        "yarn",
        128,
    )
    assert spec.norm.eps == 1e-5
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_nothing_is_left_of_what_was_there(tmp_path: Path) -> None:
    """Its index would name its shards, which would be read in place of the new weights."""
    assert run(str(tmp_path / "a"), *SMALL, "--shards", "2", "--seed", "1")[0] == 0
    for name in ("a", "b"):
        assert run(str(tmp_path / name), *SMALL, "--seed", "2")[0] == 0
    both = [{each.name: each.read_bytes() for each in (tmp_path / n).iterdir()} for n in "ab"]
    assert both[0] == both[1]


def test_without_options_it_is_a_small_tied_llama(tmp_path: Path) -> None:
    assert run(str(tmp_path / "new" / "folder"))[0] == 0
    raw = json.loads((tmp_path / "new" / "folder" / "config.json").read_text())
    assert raw["architectures"] == ["LlamaForCausalLM"]
    assert raw["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--architecture", "bloom"), "architecture 'bloom' is unknown"),
        (("--rope-type", "magic"), "rope_type 'magic' is not supported"),
        (("--kv-heads", "3"), "4 heads cannot share 3"),
        (("--extra", "{"), "--extra is not valid JSON"),
        (("--extra", "3"), "--extra is not a JSON object"),
    ],
)
def test_mistakes_are_explained(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """And nothing is written, as the folder may have a model."""
    code, output = run(str(tmp_path), *SMALL, *options)
    assert code == 2
    assert not list(tmp_path.iterdir())
    assert message in " ".join(output.replace("│", " ").split())


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        code, output = run(str(tmp_path), *SMALL, "--vocab", "2000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == EXIT_USAGE
    assert f"cannot write the checkpoint to {tmp_path}" in " ".join(output.split())
    assert not (tmp_path / "config.json").exists(), "half a model would be taken for a whole one"
