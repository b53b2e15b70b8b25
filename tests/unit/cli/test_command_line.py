"""The script and the command line around the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli import places
from cli.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[3]


def baton(
    *arguments: str,
    cwd: Path,
    script: Path = ROOT / "baton",
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script, *arguments],
        cwd=cwd,
        env=environ or {**os.environ, "BATON_VENV": str(Path(sys.executable).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command that becomes no other program, and returns its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["baton", *arguments])
        monkeypatch.delattr(os, "execve")
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0  # type: ignore[return-value]  # no text

    return run


def test_it_runs_from_any_folder_and_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "b"
    link.symlink_to(os.path.relpath(ROOT / "baton", tmp_path))
    result = baton("--help", cwd=tmp_path, script=link)
    assert result.returncode == 0, result.stderr
    for command in ("up", "demo", "chat", "doctor", "serve", "bench", "make-model"):
        assert f"  {command} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("serve", "--help"), "Serve a model with one aggregated server"),
        (("bench", "--help"), "Run a benchmark"),
        (("make-model", "--help"), "checkpoint"),
        (("up", "--help"), "--decode.max-num-seqs"),
    ],
)
def test_help_is_of_what_stands_before_it(
    arguments: tuple[str, ...],
    text: str,
    in_this_process: Callable[..., int],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert in_this_process(*arguments) == 0
    assert text in capfd.readouterr().out


def test_help_of_a_service_is_its_own(tmp_path: Path) -> None:
    """The router's: it starts in a third of a worker's time."""
    result = baton("serve", "router", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: baton serve router ")
    assert "--worker-wait-s" in result.stdout


def test_the_users_folder_is_not_imported_from(tmp_path: Path) -> None:
    for name in ("cli", "shared", "typer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the wrong place')")
    assert baton("--help", cwd=tmp_path).returncode == 0


def test_without_an_environment_it_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "baton").write_bytes((ROOT / "baton").read_bytes())
    (tmp_path / "baton").chmod(0o755)
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    result = baton("up", cwd=tmp_path, script=tmp_path / "baton", environ=environ)
    assert result.returncode == 1
    assert "make -C" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "--model", "."), "it has no config.json"),
        (
            ("serve", "proxy"),
            "proxy is no folder, no GGUF file and none of router, prefill, decode",
        ),
        (("serve", "a/b", "-dcp", "2"), "--decode-context-parallel-size 2 is refused: a model is"),
        (("bench", "nothing"), "there is no benchmarks.nothing"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    arguments: tuple[str, ...],
    message: str,
    in_this_process: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_this_process(*arguments) == 2
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_logs_go_where_this_user_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    assert places.log_folder() == tmp_path / ".run"
    (tmp_path / "file").touch()
    monkeypatch.setattr(places, "ROOT", tmp_path / "file")
    monkeypatch.setattr(places.tempfile, "gettempdir", lambda: str(tmp_path))
    assert places.log_folder() == tmp_path / f"baton-{os.getuid()}"
