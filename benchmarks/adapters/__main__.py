"""`python -m benchmarks.adapters`: a model's steps with adapters as a share of its own speed.

Adapters change all linears of the layers. Base and adapters take turns, and each ratio is the
median over the turns, so that other work on the machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from benchmarks.peers.models import MODELS, model_folder
from kernels.low_rank import LowRankPart
from shared.model.adapted.rows import AdapterRows
from shared.model.attention.base import AttentionMetadata
from shared.model.loader import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shared.model.adapted.base import AdaptableModel, AdapterWeights
    from shared.model.loaded import LoadedModel

BLOCK_SIZE = 16
#: Tokens in front of those of a step.
CONTEXT = 256
STD = 0.02
NUM_SLOTS = 4


@dataclass(frozen=True)
class Measure:
    """A batch, and the slot of each of its sequences."""

    name: str
    num_new: int
    slots: tuple[int | None, ...]


MEASURES = (
    Measure("decode 8 on 4 adapters", 1, (0, 0, 1, 1, 2, 2, 3, 3)),
    Measure("decode 8 on 4 adapters, unsorted", 1, (0, 1, 2, 3, 0, 1, 2, 3)),
    Measure("decode 8 on 1 adapter", 1, (0,) * 8),
    Measure("decode 8, half without", 1, (0, 0, 1, 1, None, None, None, None)),
    Measure("decode 8 in empty slots", 1, (9,) * 8),
    Measure("decode 1 on 1 adapter", 1, (0,)),
    Measure("prefill 4 x 128 on 4 adapters", 128, (0, 1, 2, 3)),
    Measure("prefill 1 x 512 on 1 adapter", 512, (0,)),
)


def main() -> None:
    """Measure, and print a line for each batch."""
    options = _options()
    torch.manual_seed(0)
    loaded = load_model(
        model_folder(options.model),
        attention_backend=options.backend,
        quantization=options.quantization,
    )
    model = loaded.model
    start = time.monotonic()
    adapters = [
        model.prepare_adapter(random_weights(model, options.rank)) for _ in range(NUM_SLOTS)
    ]
    took = (time.monotonic() - start) / NUM_SLOTS
    for slot, adapter in enumerate(adapters):
        adapter.place(slot)
    print(
        f"{options.model}, {loaded.dtype}, rank {options.rank}: adapters of "
        f"{adapters[0].num_bytes / 1e6:.1f} MB, made and prepared in {took * 1e3:.0f} ms each"
    )
    for measure in MEASURES:
        if options.only in measure.name:
            _print(measure, loaded, options.rounds)


def random_weights(model: AdaptableModel, rank: int) -> AdapterWeights:
    """Return an adapter of all linears; those of several projections have parts of equal sizes."""
    return {
        path: [
            LowRankPart(
                first,
                torch.randn(rank, in_size) * STD,
                torch.randn(out_size // parts, rank) * STD,
                2.0,
            )
            for first in range(0, out_size, out_size // parts)
        ]
        for path, (in_size, out_size) in model.adapter_linears.items()
        for parts in (_num_parts(path),)
    }


def _num_parts(path: str) -> int:
    return {"qkv": 3, "gate_up": 2}.get(path.rpartition(".")[2], 1)


def _print(measure: Measure, loaded: LoadedModel, rounds: int) -> None:
    step, num_tokens = _make_step(measure, loaded)
    rows = AdapterRows.of_sequences([measure.num_new] * len(measure.slots), measure.slots)
    repeats = 4 if measure.num_new == 1 else 1
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for has_adapters in (False, True) if number % 2 else (True, False):
            start = time.monotonic()
            for _ in range(repeats):
                step(rows if has_adapters else None)
            if number:  # the first round warms up
                seconds[has_adapters].append((time.monotonic() - start) / repeats)
    ratios = [own / with_ for own, with_ in zip(seconds[False], seconds[True], strict=True)]
    speeds = [num_tokens / statistics.median(seconds[each]) for each in (False, True)]
    print(
        f"{measure.name:36} base {speeds[0]:8.1f} tokens/s, adapters {speeds[1]:8.1f}, "
        f"ratio {statistics.median(ratios):.3f}",
        flush=True,
    )


def _make_step(
    measure: Measure, loaded: LoadedModel
) -> tuple[Callable[[AdapterRows | None], Tensor], int]:
    """Return what computes one step, and how many tokens it has."""
    spec, model = loaded.spec, loaded.model
    num_seqs, num_new = len(measure.slots), measure.num_new
    length = CONTEXT + num_new
    per_seq = -(-length // BLOCK_SIZE)
    kinds, num_kv_heads, head_dim = spec.attention.kv_shape
    shape = (num_seqs * per_seq, spec.num_layers, kinds, num_kv_heads, BLOCK_SIZE, head_dim)
    cache = torch.randn(shape).to(loaded.dtype)
    tables = torch.arange(num_seqs * per_seq, dtype=torch.int32).view(num_seqs, per_seq)
    positions = torch.arange(CONTEXT, length)
    slots = torch.cat([row[0] * BLOCK_SIZE + positions for row in tables.long()])
    last = list(range(num_new - 1, num_seqs * num_new, num_new))
    metadata = AttentionMetadata(
        query_start_loc=torch.arange(0, num_seqs * num_new + 1, num_new, dtype=torch.int32),
        seq_lens=torch.full((num_seqs,), length, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=slots,
        query_lens_list=[num_new] * num_seqs,
        seq_lens_list=[length] * num_seqs,
        wanted=torch.tensor(last),
        wanted_list=last,
    )
    token_ids = torch.randint(300, spec.vocab_size, (num_seqs * num_new,))
    all_positions = positions.repeat(num_seqs)

    def step(rows: AdapterRows | None) -> Tensor:
        batch = replace(metadata, adapters=rows)
        return model.compute_logits(model.forward(token_ids, all_positions, [cache], batch))

    return step, num_seqs * num_new


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--model", choices=tuple(MODELS), default="medium")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="a part of the names of what is measured")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
