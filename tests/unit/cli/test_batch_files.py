"""The files of a batch: what a crash leaves, and where the key comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.batch.command import read_api_key
from cli.batch.output import BatchOutput
from cli.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_output_that_ends_anywhere_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = [{"custom_id": name, "response": {"body": "ü"}, "error": None} for name in "ab"]
    output = BatchOutput(path)
    for line in lines:
        output.append(line)
    output.close()
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in range(first, len(content)):
        path.write_bytes(content[:end])
        output = BatchOutput(path)
        assert output.done == {"a"}
        output.append(lines[1])
        output.close()
        assert path.read_bytes() == content


def test_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATON_API_KEY", raising=False)
    assert read_api_key(None) is None
    monkeypatch.setenv("BATON_API_KEY", "from-environment ")
    assert read_api_key(None) == "from-environment"
    file = tmp_path / "key"
    with pytest.raises(CommandError, match="cannot read the key"):
        read_api_key(file)
    file.write_text("\n")
    with pytest.raises(CommandError, match="no key"):
        read_api_key(file)
    file.write_text("from-file\n")
    assert read_api_key(file) == "from-file"
