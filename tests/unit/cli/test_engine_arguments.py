"""vLLM's arguments on the command line of `baton up` and `baton serve`."""

from __future__ import annotations

import pytest

from cli.flags.engine_arguments import join_names


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("", ""),
        ("--model m --prefill 2", "--model m --prefill 2"),
        ("--served-model-name a", "--served-model-name a"),
        ("--served-model-name a b c --prefill 2", "--served-model-name a,b,c --prefill 2"),
        ("--prefill 2 --served-model-name a,b c", "--prefill 2 --served-model-name a,b,c"),
        ("--served-model-name=a,b x", "--served-model-name=a,b x"),
        ("--max-num-seqs 8 --served-model-name a b", "--max-num-seqs 8 --served-model-name a,b"),
    ],
)
def test_names_are_joined(words: str, joined: str) -> None:
    assert join_names(words.split()) == joined.split()


def test_a_flag_without_a_name_stays_without_one() -> None:
    assert join_names(["--served-model-name"]) == ["--served-model-name"]
    assert join_names(["--served-model-name", "--prefill"]) == ["--served-model-name", "--prefill"]
