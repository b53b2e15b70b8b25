"""vLLM's arguments on the command line of `baton up` and `baton serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer.main

from cli.__main__ import app
from cli.cluster import Cluster, ClusterSpec
from cli.flags.engine_arguments import join_names

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_cluster_has_as_many_processes_as_asked_for(tmp_path: Path) -> None:
    command = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]
    words = ["-dp", "3", "--api-process-count=2", "--prefill", "0"]
    given = command.make_context("up", words).params
    cluster = Cluster(
        ClusterSpec(
            model=tmp_path,
            served_model_name="m",
            log_folder=tmp_path,
            num_routers=given["routers"],
            num_prefill=given["prefill"],
            num_decode=given["decode"],
        )
    )
    assert (len(cluster.routers), len(cluster.workers)) == (2, 3)
