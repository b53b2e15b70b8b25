"""The programs in examples/offline run, and print what their first lines promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from cli.places import ROOT

EXAMPLES = ROOT / "examples" / "offline"
#: What the output of each has.
PRINTED = {
    "llm.py": r"(Prompt: '.+', Generated text: .+\n){3}",
    # They end in any order.
    "llm_engine.py": r"(?=.*0: 'def add.*'\])(?=.*1: 'What is a tuple)(?=.*2: .* -> \[.+, .+\])",
    # Where an answer ends depends on how a processor rounds.
    "async_llm.py": r"stream-0: \d+ pieces: ['\"].+stream-1: \d+ pieces: ['\"].+",
    "prefix_caching.py": r"ms, 0 of \d+ .*Output: .*\d+ ms, 6\d\d of 6\d\d prompt tokens",
    "quantize.py": r"(Prompt: '.+', Output: .+\n){2}",
}


def test_every_program_is_tried_and_in_the_table() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `.*examples/offline/(\w+\.py)`", table, re.MULTILINE)) == set(
        PRINTED
    )


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("BATON_VENV", str(Path(sys.executable).parents[1]))
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(PRINTED[name], printed := capfd.readouterr().out, re.DOTALL), printed
