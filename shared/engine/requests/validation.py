"""Refusal of requests that could never be served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.engine.grammar.positions import count_valid
from shared.engine.sequence.sequence import Sequence, Status
from shared.errors import (
    InternalError,
    InvalidRequestError,
    RequestCancelledError,
    UnsupportedError,
)
from shared.request.hidden_states import NO_HIDDEN_STATES
from shared.request.prompt_embeds import known_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shared.engine.sequence.request import EngineRequest
    from shared.model.spec.decoder import DecoderSpec
    from shared.request.hidden_states import HiddenStatesPolicy
    from shared.request.sampling_params import SamplingParams


def find_receiving(sequences: Mapping[str, Sequence], request_id: str) -> Sequence:
    """Return the sequence whose blocks, or slots of the host tier, a peer fills.

    Raises:
        RequestCancelledError: it has ended.
    """
    seq = sequences.get(request_id)
    if seq is None:
        raise RequestCancelledError(f"request {request_id} has ended")
    if seq.status not in (Status.RECEIVING, Status.LANDING):
        raise InternalError(f"request {request_id} is not receiving but {seq.status.name}")
    return seq


class RequestValidator:
    """Checks requests against one engine.

    The pool holds at least one sequence of `max_model_len`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        max_model_len: int,
        hidden_states: HiddenStatesPolicy = NO_HIDDEN_STATES,
    ) -> None:
        self._vocab_size = spec.vocab_size
        self._has_head = spec.has_head
        self._max_model_len = max_model_len
        self._hidden_states = hidden_states

    def check(self, request: EngineRequest) -> None:
        """Check a request.

        Raises:
            InvalidRequestError: the request is impossible; names the parameter.
        """
        self._check_length(request)
        prompt = request.prompt_token_ids
        self._check_tokens("prompt", prompt if request.embeds is None else known_tokens(prompt))
        self._check_tokens("resumed_token_ids", request.resumed_token_ids)
        self._check_sampling(request.sampling)
        self._hidden_states.check(request.sampling)
        if not 0 <= request.max_itl_ms < math.inf:
            raise InvalidRequestError(
                f"request {request.request_id}: a bound of {request.max_itl_ms} ms between two "
                "tokens; give one of at least 0, or 0 for none",
                param="max_itl_ms",
            )
        if request.sampling.grammar is not None and request.grammar is None:
            message = f"request {request.request_id}: structured output is not possible here"
            raise UnsupportedError(message, param=request.sampling.grammar.param)
        num_resumed, max_tokens = len(request.resumed_token_ids), request.sampling.max_tokens
        if num_resumed >= max_tokens and not request.hold_blocks:
            raise InvalidRequestError(
                f"request {request.request_id}: {num_resumed} of at most {max_tokens} tokens were "
                "generated already",
                param="max_tokens",
            )

    def check_first_token(self, seq: Sequence, token_id: int) -> None:
        """Check a token that a peer sampled.

        Raises:
            InvalidRequestError: the model has no such token.
            InternalError: the sequence's grammar does not allow it.
        """
        self._check_tokens("first_token", (token_id,))
        if seq.grammar is not None and not count_valid(seq.grammar, (token_id,)):
            raise InternalError(
                f"request {seq.request_id}: its grammar does not allow the first token {token_id}; "
                "do both workers have the same --structured-outputs-backend?"
            )

    def _check_length(self, request: EngineRequest) -> None:
        num_tokens = len(request.prompt_token_ids) + len(request.resumed_token_ids)
        if not request.prompt_token_ids:
            raise InvalidRequestError(
                f"request {request.request_id}: the prompt is empty", param="prompt"
            )
        if request.rows is not None:
            self._check_rows(request)
            return
        if not self._has_head:
            raise UnsupportedError(
                f"request {request.request_id}: this model makes vectors; it has no output head to "
                "generate with",
                param="model",
            )
        if num_tokens >= self._max_model_len:
            raise InvalidRequestError(
                f"request {request.request_id}: {num_tokens} tokens leave no room for an answer; "
                f"prompt and answer together may have {self._max_model_len}",
                param="prompt",
            )

    def _check_rows(self, request: EngineRequest) -> None:
        """Check what only a request for states of its prompt must keep."""
        if request.resumed_token_ids or request.hold_blocks or request.grammar is not None:
            raise InvalidRequestError(
                f"request {request.request_id}: states of a prompt are not generated", param="rows"
            )
        if len(request.prompt_token_ids) > self._max_model_len:
            raise InvalidRequestError(
                f"request {request.request_id}: {len(request.prompt_token_ids)} tokens; an input "
                f"may have {self._max_model_len}",
                param="prompt",
            )

    def _check_sampling(self, sampling: SamplingParams) -> None:
        if sampling.grammar is not None and sampling.grammar.thinking is not None:
            thinking = sampling.grammar.thinking
            self._check_tokens("grammar", (thinking.begin_token_id, thinking.end_token_id))
        self._check_tokens("logit_bias", sampling.logit_bias)
        self._check_tokens("stop_token_ids", sampling.stop_token_ids)
        for word in sampling.bad_words_token_ids:
            if not word:
                raise InvalidRequestError("a bad word is empty", param="bad_words_token_ids")
            self._check_tokens("bad_words_token_ids", word)
        allowed = sampling.allowed_token_ids
        if allowed is None:
            return
        self._check_tokens("allowed_token_ids", allowed)
        if not allowed:
            raise InvalidRequestError("no token is allowed", param="allowed_token_ids")
        if sampling.min_tokens and sampling.final_token_ids.issuperset(allowed):
            raise InvalidRequestError(
                "only tokens that end the answer are allowed, so min_tokens cannot be reached",
                param="min_tokens",
            )

    def _check_tokens(self, param: str, token_ids: Iterable[int]) -> None:
        ids = token_ids if isinstance(token_ids, tuple) else tuple(token_ids)
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            bad = next(i for i in ids if not 0 <= i < self._vocab_size)
            raise InvalidRequestError(
                f"{param} has token id {bad}; ids go from 0 to {self._vocab_size - 1}", param=param
            )
