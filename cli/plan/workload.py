"""Requests over time: from files of traces, or as a wave."""

from __future__ import annotations

import csv
import json
import lzma
import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

#: Tokens of a block whose hash is in a trace.
BLOCK_SIZE = 512


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Of its prompt, `num_held` tokens are in a cache when it comes."""

    at_s: float
    num_tokens: int
    num_output_tokens: int
    num_held: int = 0


def read_workload(path: Path, *, num_blocks: int) -> list[Request]:
    """Read a trace: JSON lines as Mooncake's, also with `xz`, or a table with a heading (CSV).

    Columns: `timestamp` [ms] (or `TIMESTAMP`, `at_s` [s]), `input_length` (or `ContextTokens`,
    `num_tokens`), `output_length` (or `GeneratedTokens`, `num_output_tokens`), and `hash_ids` where
    prompts share blocks: what is held is what one cache of `num_blocks` blocks would hold.

    Raises:
        CommandError: the file cannot be read, or has no requests; a line is named by its number.
    """
    try:
        rows = list(_rows(path))
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise CommandError(f"{path}: {error}") from error
    if not rows:
        raise CommandError(f"{path} has no requests")
    cache = _Cache(num_blocks)
    found = [_request(path, number, row, cache) for number, row in rows]
    found.sort(key=lambda request: request.at_s)
    first_s = found[0].at_s
    return [Request(r.at_s - first_s, r.num_tokens, r.num_output_tokens, r.num_held) for r in found]


def wave(
    *,
    low_per_s: float,
    high_per_s: float,
    period_s: float,
    duration_s: float,
    num_tokens: int,
    num_output_tokens: int,
    seed: int = 1,
) -> list[Request]:
    """Return requests at random times, at a rate that swings between two, from the low one on."""
    rng = random.Random(seed)
    found: list[Request] = []
    at_s = 0.0
    while True:
        at_s += rng.expovariate(high_per_s)
        if at_s >= duration_s:
            return found
        share = (1 - math.cos(2 * math.pi * at_s / period_s)) / 2
        rate = low_per_s + (high_per_s - low_per_s) * share
        if rng.random() * high_per_s < rate:
            found.append(Request(at_s, num_tokens, num_output_tokens))


class _Cache:
    """Blocks that were used last."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, hashes: Sequence[int]) -> int:
        """Return the number of leading blocks that are held; all are held afterwards."""
        num_held = next(
            (i for i, each in enumerate(hashes) if each not in self._blocks), len(hashes)
        )
        for each in reversed(hashes):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)
        return num_held


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            yield from enumerate(csv.DictReader(file), start=2)
        return
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        yield from _json_rows(path, lines)


def _json_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{path}, line {number}: no JSON: {error}") from error
        if not isinstance(row, dict):
            raise CommandError(f"{path}, line {number}: not an object")
        yield number, row


def _request(path: Path, number: int, row: dict[str, Any], cache: _Cache) -> Request:
    where = f"{path}, line {number}"
    if "at_s" in row:
        at_s = _number(where, row, "at_s")
    else:
        at_s = _number(where, row, "timestamp", "TIMESTAMP") / 1000
    num_tokens = round(_number(where, row, "input_length", "ContextTokens", "num_tokens"))
    num_output = round(_number(where, row, "output_length", "GeneratedTokens", "num_output_tokens"))
    if num_tokens < 1:
        raise CommandError(f"{where}: a prompt of {num_tokens} tokens")
    hashes = row.get("hash_ids") or ()
    if not isinstance(hashes, (list, tuple)):
        raise CommandError(f"{where}: `hash_ids` must be a list")
    num_full = num_tokens // BLOCK_SIZE
    num_held = min(cache.use(hashes[:num_full]) * BLOCK_SIZE, num_tokens - 1)
    return Request(at_s, num_tokens, max(1, num_output), num_held)


def _number(where: str, row: dict[str, Any], *names: str) -> float:
    """Return the first of these that is there; a time may also be a date."""
    for name in names:
        if (value := row.get(name)) not in (None, ""):
            try:
                found = float(value)
            except (TypeError, ValueError) as error:
                message = f"{where}: `{name}` must be a number, not {str(value)[:60]!r}"
                raise CommandError(message) from error
            if math.isfinite(found) and found >= 0:
                return found
            raise CommandError(f"{where}: `{name}` must be a finite number from 0 on, not {value}")
    raise CommandError(f"{where}: no `{names[0]}`")
