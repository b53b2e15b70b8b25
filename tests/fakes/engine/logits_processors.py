"""Custom logits processors, as somebody who runs workers would write them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

from shared.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.sampler.processors.base import NewRequest, ProcessorContext


class NoRepeat:
    """Rules out the last `no_repeat` tokens of prompt and output."""

    is_argmax_invariant = False

    def __init__(self, context: ProcessorContext) -> None:
        self.vocab_size = context.vocab_size

    def new_request(self, request: NewRequest) -> deque[int] | None:
        size = request.params.extra_args.get("no_repeat")
        if size is None:
            return None
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < self.vocab_size:
            message = f"no_repeat must be a number of tokens, not {size!r}"
            raise InvalidRequestError(message, param="extra_args.no_repeat")
        return deque(request.prompt_token_ids[-size:], maxlen=size)

    def update(self, state: deque[int], token_ids: Sequence[int]) -> None:
        state.extend(token_ids)

    def apply(self, logits: torch.Tensor, states: Sequence[deque[int]]) -> None:
        for row, state in enumerate(states):
            logits[row, list(state)] = float("-inf")


class Sharpen:
    """Multiplies logits by `sharpen`."""

    is_argmax_invariant = True

    def __init__(self, context: ProcessorContext) -> None:
        self.num_rows = 0

    def new_request(self, request: NewRequest) -> float | None:
        factor = request.params.extra_args.get("sharpen")
        return None if factor is None else float(factor)  # type: ignore[arg-type]  # tests send numbers

    def update(self, state: float, token_ids: Sequence[int]) -> None:
        pass

    def apply(self, logits: torch.Tensor, states: Sequence[float]) -> None:
        self.num_rows += len(states)
        logits *= torch.tensor(states, device=logits.device)[:, None]


class Shift:
    """Adds `shift` to all logits: with `Sharpen`, the order makes a difference to penalties."""

    is_argmax_invariant = False

    def __init__(self, context: ProcessorContext) -> None:
        pass

    def new_request(self, request: NewRequest) -> float | None:
        value = request.params.extra_args.get("shift")
        return None if value is None else float(value)  # type: ignore[arg-type]  # tests send numbers

    def update(self, state: float, token_ids: Sequence[int]) -> None:
        pass

    def apply(self, logits: torch.Tensor, states: Sequence[float]) -> None:
        logits += torch.tensor(states, device=logits.device)[:, None]


def broken(context: ProcessorContext) -> NoRepeat:
    """Cannot be made."""
    raise ValueError(f"not with {context.vocab_size} tokens")


class Script:
    """Leaves only the tokens `script`, one after the other: what a random model would never say."""

    is_argmax_invariant = False

    def __init__(self, context: ProcessorContext) -> None:
        pass

    def new_request(self, request: NewRequest) -> deque[int] | None:
        script = request.params.extra_args.get("script")
        return None if script is None else deque(script)  # type: ignore[arg-type]  # tests send lists

    def update(self, state: deque[int], token_ids: Sequence[int]) -> None:
        for _ in token_ids:
            state.popleft()

    def apply(self, logits: torch.Tensor, states: Sequence[deque[int]]) -> None:
        for row, state in enumerate(states):
            kept = logits[row, state[0]].item()
            logits[row] = float("-inf")
            logits[row, state[0]] = kept


class Failing:
    """Fails for requests with `fails`."""

    is_argmax_invariant = False

    def __init__(self, context: ProcessorContext) -> None:
        pass

    def new_request(self, request: NewRequest) -> bool | None:
        return True if request.params.extra_args.get("fails") else None

    def update(self, state: bool, token_ids: Sequence[int]) -> None:
        pass

    def apply(self, logits: torch.Tensor, states: Sequence[bool]) -> None:
        raise ZeroDivisionError
