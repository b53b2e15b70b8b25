"""`baton quantize`: its table and its errors."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest

from cli.errors import CommandError
from cli.places import SHIPPED_MODEL
from cli.quantize.command import Options, run_quantize
from shared.errors import ConfigError
from shared.model.quantize.folder import open_folder
from shared.model.quantize.output import KvCache

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("In the beginning there were a few words. " * 60)
    return path


def run(model: Path, out: Path, **options: Any) -> int:
    return run_quantize(Options(model=model, out=out, **{"scheme": "w8a8", **options}))


def test_the_table_has_sizes_and_perplexities(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an engine, with the files that were written."""
    assert run(SHIPPED_MODEL, tmp_path / "out", evaluate=text, sample_tokens=64) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows["w8a8"][1:] == ["42", "7.88", "MiB", "3.96", "MiB"]
    assert rows["all"][1] == "56"
    before, after = float(rows["perplexity"][1]), float(rows["perplexity"][2])
    assert before > 1
    assert 0 < abs(after / before - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache": KvCache.FP8}, "--kv-cache needs to see keys and values"),
        ({"layers": ("q_proj",)}, "--layer 'q_proj' is not PATTERN=SCHEME"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=message):
        run(SHIPPED_MODEL, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="exists"):
        run(SHIPPED_MODEL, tmp_path)


def test_a_full_disk_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"MiB free, about .* MiB are needed"),
        open_folder(tmp_path / "out", {}, 1 << 60),
    ):
        pass


def test_a_disk_that_fails_is_named(tmp_path: Path) -> None:
    """No file may be as large as those of the weights."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"cannot write .* the same command goes on"):
            run(SHIPPED_MODEL, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "out").exists()
    assert run(SHIPPED_MODEL, tmp_path / "out") == 0


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        open_folder(out, {}, 0),
        pytest.raises(ConfigError, match="another run is writing"),
        open_folder(out, {}, 0),
    ):
        pass
