"""A run of `baton quantize` that is killed goes on where it stopped."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from cli.places import ROOT, python_environ
from cli.quantize.command import Options, run_quantize
from shared.errors import ConfigError
from shared.model.quantize.folder import MANIFEST, partial_path
from tests.fakes.processes.warm_process import WarmProcess
from tests.unit.model.checkpoints import write

if TYPE_CHECKING:
    from pathlib import Path

NUM_LAYERS = 12
TIMEOUT_S = 60.0


def run(model: Path, out: Path, **options: Any) -> int:
    return run_quantize(Options(model=model, out=out, **{"scheme": "w8a8", **options}))


def test_a_killed_run_goes_on_behind_its_complete_files(tmp_path: Path) -> None:
    """The calibration, too: files are those of a run that nothing interrupted."""
    text = tmp_path / "text.txt"
    text.write_text("In the beginning there were a few words. " * 20)
    model = write(tmp_path / "model", num_layers=NUM_LAYERS)
    out, manifest = tmp_path / "out", partial_path(tmp_path / "out") / MANIFEST
    options = {"calibrate": text, "sample_tokens": 64}
    flags = ["--scheme", "w8a8", "--calibrate", str(text), "--sample-tokens", "64"]
    with (tmp_path / "log").open("wb") as log:
        process = WarmProcess(
            ["cli", "quantize", str(model), str(out), *flags],
            cwd=ROOT, env=python_environ(), log=log,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not manifest.exists() or len(_files(manifest)) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    assert not out.exists()
    done = _files(manifest)
    assert 3 <= len(done) <= NUM_LAYERS
    times = {file: manifest.with_name(file).stat().st_mtime_ns for file in done}
    with pytest.raises(ConfigError, match="interrupted run with other settings"):
        run(model, out, **{**options, "scheme": "fp8"})
    assert run(model, out, **options) == 0
    assert {file: (out / file).stat().st_mtime_ns for file in done} == times
    assert run(model, tmp_path / "other", **options) == 0
    ours, theirs = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (out, tmp_path / "other")
    )
    assert ours == theirs


def _files(manifest: Path) -> dict[str, Any]:
    return dict(json.loads(manifest.read_text())["files"])
