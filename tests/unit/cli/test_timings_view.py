"""The table of where the time went."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from baton_client import Timings, Usage
from cli.chat.timings_view import timings_table, tokens_per_s


def shown(timings: dict[str, Any]) -> dict[str, str]:
    console = Console(file=io.StringIO(), width=100)
    usage = Usage(prompt_tokens=9, completion_tokens=11, cached_tokens=4)
    table = timings_table(Timings(**timings), usage)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    rows = [line.strip().split("  ", 1) for line in console.file.getvalue().splitlines()]
    return {row[0]: row[1].strip() for row in rows}


def test_queues_are_added_up() -> None:
    rows = shown({"router_queue_ms": 1.0, "decode_queue_ms": 2.0, "prefill_queue_ms": 3.5})
    assert rows["queue"] == "6.5 ms"


def test_a_hand_off_is_shown_with_what_it_moved() -> None:
    rows = shown(
        {
            "transfer_bytes": 2**20,
            "transfer_ms": 2.0,
            "transfer_exposed_ms": 0.5,
            "connector": "zmq",
            "prefill_worker": "p",
            "decode_worker": "d",
        }
    )
    assert rows["transfer, exposed"].endswith("1.00 MiB over zmq in 2.0 ms")
    assert rows["first token"].endswith("p → d")


def test_a_prompt_that_stayed_where_it_was() -> None:
    rows = shown({"decode_worker": "d", "prefill_worker": ""})
    assert rows["first token"].endswith("d alone")
    assert rows["transfer, exposed"].endswith("nothing to move")


def test_the_first_token_is_not_decodings() -> None:
    assert tokens_per_s(Timings(decode_ms=100.0), Usage(completion_tokens=11)) == "100.0 tokens/s"
    assert tokens_per_s(Timings(decode_ms=0.0), Usage(completion_tokens=1)) == "–"
