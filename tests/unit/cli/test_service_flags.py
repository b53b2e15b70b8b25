"""Flags behind `baton up` reach the services that have such a setting, and no others."""

from __future__ import annotations

import pytest

from cli.errors import CommandError
from cli.flags.node_words import node_words
from cli.flags.options import Service
from cli.flags.service_flags import sort_flags


def sort(*arguments: str) -> dict[str, list[str]]:
    return {service.value: flags for service, flags in sort_flags(arguments).items()}


def test_a_flag_goes_to_every_service_that_has_it() -> None:
    assert sort("--max-num-seqs", "8", "--tool-call-parser", "hermes", "--log-level=debug") == {
        "router": ["--tool-call-parser", "hermes", "--log-level=debug"],
        "prefill": ["--max-num-seqs", "8", "--log-level=debug"],
        "decode": ["--max-num-seqs", "8", "--log-level=debug"],
    }
    assert sort("--local-prefill-threshold", "0", "--no-peer-fetch") == {
        "router": ["--no-peer-fetch"],
        "prefill": ["--local-prefill-threshold", "0"],
        "decode": ["--local-prefill-threshold", "0"],
    }


def test_a_flag_of_one_service_wins_wherever_it_stands() -> None:
    flags = sort("--decode.max-num-seqs=4", "--max-num-seqs", "8", "--prefill.enforce-eager")
    assert flags["decode"] == ["--max-num-seqs", "8", "--max-num-seqs", "4"]
    assert flags["prefill"] == ["--max-num-seqs", "8", "--enforce-eager"]
    assert flags["router"] == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--max-num-seq", "8"), r"--max-num-seq; did you mean --max-num-seqs\?"),
        (("--prefill.routing-policy", "random"), "prefill: unknown setting --routing-policy"),
        (("--gateway.port", "8"), "unknown setting --gateway.port"),
        (("--decode.name", "a"), "--decode.name: `baton up` sets it itself"),
        (("stray", "--max-num-seqs", "8"), "'stray' belongs to no flag"),
    ],
)
def test_what_no_service_has_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as refused:
        sort(*arguments)
    assert refused.value.exit_code == 2


def test_every_service_is_known() -> None:
    assert set(sort()) == {service.value for service in Service}


def test_another_host_takes_the_worker_s_words_of_a_server() -> None:
    line = "--model m --nnodes 2 --port 80 --prefill 0 --api-keys k --decode.block_size 8 --typo 3"
    words = line.split()
    mine = ["--port", "--prefill", "--decode"]
    assert node_words(words, mine) == []
    assert node_words([*words, "--node-rank", "0"], mine) == []
    found = "--model m --nnodes 2 --port 80 --block-size 8 --typo 3 --node-rank 1"
    assert node_words([*words, "--node-rank", "1"], mine) == found.split()
