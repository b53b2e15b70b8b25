"""Encoding of plans and results, for a runner in another process of the same machine."""

from __future__ import annotations

from array import array
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from baton.v1 import common_pb2
from shared.engine.prompt_hidden import HiddenFormat, PlacedHidden
from shared.engine.prompt_rows import PromptRows
from shared.engine.step.plan import (
    GivenRows,
    NewBlocks,
    PromptScore,
    RowMasks,
    RowStart,
    StepPlan,
    WantedRows,
)
from shared.engine.step.result import StepResult
from shared.engine.step.tokens.verification import Verified
from shared.request.answer import PositionLogprobs, TokenLogprob
from shared.request.grammar.wire import grammar_from_wire, grammar_to_wire
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.wire import budget_from_wire, budget_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable

_Packed = tuple[str, list[int], bytes]


def encode_plan(plan: StepPlan) -> bytes:
    """Return a plan as bytes. Numbers keep all of their bits."""
    return msgspec.msgpack.encode(
        {
            "rows": plan.rows,
            "firsts": plan.firsts,
            "num_new_tokens": plan.num_new_tokens,
            "token_ids": plan.token_ids,
            "adapters": plan.adapters,
            "given": [astuple(rows) for rows in plan.given],
            "fed": plan.fed,
            "fed_rows": plan.fed_rows,
            "sampled": plan.sampled,
            "num_drafts": plan.num_drafts,
            "is_synchronous": plan.is_synchronous,
            "draft_probs": {at: _pack(probs) for at, probs in plan.draft_probs.items()},
            "starts": [_pack_start(start) for start in plan.starts],
            "new_blocks": [
                (new.row, new.group, new.first, new.block_ids.tobytes()) for new in plan.new_blocks
            ],
            "new_tokens": {row: tokens.tobytes() for row, tokens in plan.new_tokens.items()},
            "masks": [(mask.place, _pack(mask.bits)) for mask in plan.masks],
            "scores": [astuple(score) for score in plan.scores],
            "wanted_rows": [astuple(wanted) for wanted in plan.wanted_rows],
            "hidden": {at: astuple(placed) for at, placed in plan.hidden.items()},
        }
    )


def decode_plan(data: bytes) -> StepPlan:
    """Return the plan of these bytes. They must come from `encode_plan` of the same version."""
    given: dict[str, Any] = msgspec.msgpack.decode(data, strict=False)
    given["draft_probs"] = {at: _unpack(probs) for at, probs in given["draft_probs"].items()}
    given["given"] = [GivenRows(*rows) for rows in given["given"]]
    given["starts"] = [_unpack_start(*start) for start in given["starts"]]
    given["new_blocks"] = [
        NewBlocks(row, group, first, array("i", ids))
        for row, group, first, ids in given["new_blocks"]
    ]
    given["new_tokens"] = {row: array("q", ids) for row, ids in given["new_tokens"].items()}
    given["masks"] = [RowMasks(place, _unpack(bits)) for place, bits in given["masks"]]
    given["wanted_rows"] = [
        WantedRows(place, PromptRows(which)) for place, which in given["wanted_rows"]
    ]
    given["scores"] = [PromptScore(*score) for score in given["scores"]]
    given["hidden"] = {at: _unpack_placed(*placed) for at, placed in given["hidden"].items()}
    return StepPlan(**given)


def encode_result(result: StepResult) -> bytes:
    """Return a result as bytes."""
    return msgspec.msgpack.encode(
        (
            result.token_ids,
            {
                at: (done.token_ids, _pack_all(done.logprobs), done.num_accepted, done.is_stuck)
                for at, done in result.verified.items()
            },
            {at: astuple(record) for at, record in result.logprobs.items()},
            {at: _pack_all(records) for at, records in result.prompt_logprobs.items()},
            result.hidden_states,
            {at: _pack(rows) for at, rows in result.rows.items()},
        )
    )


def decode_result(data: bytes) -> StepResult:
    """Return the result of these bytes."""
    token_ids, verified, logprobs, prompt_logprobs, hidden_states, rows = msgspec.msgpack.decode(
        data, strict=False
    )
    return StepResult(
        token_ids=token_ids,
        verified={
            at: Verified(ids, _unpack_all(records), num, is_stuck)
            for at, (ids, records, num, is_stuck) in verified.items()
        },
        logprobs={at: _unpack_logprobs(*record) for at, record in logprobs.items()},
        prompt_logprobs={at: _unpack_all(records) for at, records in prompt_logprobs.items()},
        hidden_states={at: tuple(rows) for at, rows in hidden_states.items()},
        rows={at: _unpack(packed) for at, packed in rows.items()},
    )


def _pack(tensor: torch.Tensor) -> _Packed:
    values = tensor.cpu().contiguous().numpy()
    return values.dtype.str, list(values.shape), values.tobytes()


def _unpack(packed: _Packed) -> torch.Tensor:
    dtype, shape, data = packed
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype).reshape(shape))


def _pack_start(start: RowStart) -> tuple[Any, ...]:
    given = {each.name: getattr(start.params, each.name) for each in fields(start.params)}
    if start.params.grammar is not None:
        given["grammar"] = grammar_to_wire(start.params.grammar).SerializeToString()
    if start.params.thinking_budget is not None:
        budget = budget_to_wire(start.params.thinking_budget)
        given["thinking_budget"] = budget.SerializeToString()
    return start.row, given, start.needs_host, start.token_ids.tobytes(), start.num_prompt_tokens


def _unpack_start(
    row: int, given: dict[str, Any], needs_host: bool, token_ids: bytes, num_prompt_tokens: int
) -> RowStart:
    if given["grammar"] is not None:
        given["grammar"] = grammar_from_wire(common_pb2.Grammar.FromString(given["grammar"]))
    if given["thinking_budget"] is not None:
        budget = common_pb2.ThinkingBudget.FromString(given["thinking_budget"])
        given["thinking_budget"] = budget_from_wire(budget)
    given["logprobs_mode"] = LogprobsMode(given["logprobs_mode"])
    given["extra_args"] = {name: _tupled(value) for name, value in given["extra_args"].items()}
    params = SamplingParams(**{name: _tupled(value) for name, value in given.items()})
    return RowStart(row, params, needs_host, array("q", token_ids), num_prompt_tokens)


def _tupled(value: Any) -> Any:
    """Return a value with tuples where msgpack has lists."""
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


def _unpack_placed(
    form: tuple[Any, ...], first_position: int, num_skipped: int, blocks: list[int]
) -> PlacedHidden:
    layers, final, dtype, row_size, row_bytes, rows_per_block = form
    states_format = HiddenFormat(
        layers=tuple(layers),
        final=final,
        dtype=dtype,
        row_size=row_size,
        row_bytes=row_bytes,
        rows_per_block=rows_per_block,
    )
    return PlacedHidden(states_format, first_position, num_skipped, tuple(blocks))


def _pack_all(records: Iterable[PositionLogprobs]) -> list[tuple[Any, ...]]:
    return [astuple(record) for record in records]


def _unpack_all(records: Iterable[tuple[Any, ...]]) -> list[PositionLogprobs]:
    return [_unpack_logprobs(*record) for record in records]


def _unpack_logprobs(chosen: list[Any], top: list[list[Any]]) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(*chosen), tuple(TokenLogprob(*each) for each in top))
