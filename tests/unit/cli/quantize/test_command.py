"""`baton quantize`: its table and its errors."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest

from cli.errors import EXIT_USAGE, CommandError
from cli.places import SHIPPED_MODEL
from cli.quantize import command
from cli.quantize.command import Options, run_quantize
from cli.quantize.perplexity import perplexity
from cli.quantize.texts import digest
from models.pydoc.conversations import sample_questions, write
from shared.errors import ConfigError
from shared.model.quantize.folder import open_folder
from shared.model.quantize.output import KvCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cli.quantize.texts import Text


def run(model: Path, out: Path, **options: Any) -> int:
    return run_quantize(Options(model=model, out=out, **{"scheme": "w8a8", **options}))


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For calibration and perplexity of the shipped model.

    Python's library decides which questions there are. Perplexities of 64 of them move by 0.3 to
    1.2 % in fp8, those of 256 by 0.5 to 0.8 %.
    """
    folder = tmp_path_factory.mktemp("questions")
    paths = {name: folder / f"{name}.jsonl" for name in ("calibrate", "evaluate")}
    seen, held_out = sample_questions(256)
    write(paths["calibrate"], seen[:64])
    write(paths["evaluate"], held_out)
    return paths


@pytest.fixture(scope="module", autouse=True)
def _the_shipped_model_is_scored_once() -> Iterator[None]:
    """Each run asks for the same number of the same engine."""
    known: dict[tuple[Path, str], float] = {}

    def once(model_dir: Path, texts: Sequence[Text]) -> float:
        if model_dir != SHIPPED_MODEL:
            return perplexity(model_dir, texts)
        key = model_dir, digest(texts)
        if key not in known:
            known[key] = perplexity(model_dir, texts)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "perplexity", once)
        yield


@pytest.mark.parametrize(
    ("options", "num_mib", "most"),
    [
        ({"scheme": "w8a8"}, "3.96", 0.01),
        ({"scheme": "fp8"}, "3.96", 0.01),
        ({"scheme": "w4a16", "group_size": 64, "calibrate": True}, "2.09", 0.05),
    ],
)
def test_the_table_has_sizes_and_perplexities(
    options: dict[str, Any],
    num_mib: str,
    most: float,
    questions: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In an engine, with the files that were written."""
    chosen = {**options, "evaluate": questions["evaluate"]}
    if "calibrate" in chosen:
        chosen["calibrate"] = questions["calibrate"]
    assert run(SHIPPED_MODEL, tmp_path / "out", **chosen) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert rows[options["scheme"]][1:] == ["42", "7.88", "MiB", num_mib, "MiB"]
    assert rows["all"][1] == "56"
    before, after = float(rows["perplexity"][1]), float(rows["perplexity"][2])
    assert 1 < before < 4
    assert 0 < abs(after / before - 1) < most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache": KvCache.FP8}, "--kv-cache needs to see keys and values"),
        ({"layers": ("q_proj",)}, "--layer 'q_proj' is not PATTERN=SCHEME"),
        ({"scheme": "int3"}, "scheme 'int3' is unknown; known: "),
        ({"layers": ("q_proj=int3",)}, "scheme 'int3' is unknown; known: "),
        ({"scheme": "w8a8", "group_size": 32}, "group"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        run(SHIPPED_MODEL, tmp_path / "out", **options)
    assert caught.value.exit_code == EXIT_USAGE
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    """Also a link that leads nowhere: the folder could not be moved there at the end."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for each in (tmp_path, tmp_path / "link"):
        with pytest.raises(CommandError, match="exists"):
            run(SHIPPED_MODEL, each)


def test_a_full_disk_is_refused_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"MiB free, about .* MiB are needed"),
        open_folder(tmp_path / "out", {}, 1 << 60),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


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
