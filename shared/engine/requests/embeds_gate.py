"""Which prompts may give embeddings: whether the model takes them, and what memory they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import ConfigError, InvalidRequestError, OverloadedError, UnsupportedError
from shared.request.prompt_embeds import PARAM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.engine.sequence.request import EngineRequest
    from shared.engine.sequence.sequence import Sequence
    from shared.engine.settings.engine import EngineConfig
    from shared.engine.step.causal_model import CausalModel


class EmbedsGate:
    """Checks requests with embeddings against one engine."""

    def __init__(self, model: CausalModel, config: EngineConfig) -> None:
        """Check the model.

        Raises:
            ConfigError: embeddings are allowed, and this model cannot take them.
        """
        self._max_bytes = config.prompt_embeds_bytes
        #: None: they are not allowed.
        self._width = model.embeds_width if config.enable_prompt_embeds else None
        reason = None if self._width is None else model.why_no_embeds
        if reason is not None:
            raise ConfigError(f"enable_prompt_embeds is not possible with this model: {reason}")

    def check(self, request: EngineRequest, held: Iterable[Sequence]) -> None:
        """Check a request; `held`: the sequences whose embeddings are in memory.

        Raises:
            InvalidRequestError: it can never be served.
            OverloadedError: there is no memory for its embeddings now.
        """
        embeds = request.embeds
        if embeds is None:
            return
        if self._width is None:
            message = f"{PARAM} are refused here: see --enable-prompt-embeds"
            raise UnsupportedError(message, param=PARAM)
        if embeds.width != self._width:
            raise InvalidRequestError(
                f"{PARAM} has rows of {embeds.width} numbers; this model's hidden size is "
                f"{self._width}",
                param=PARAM,
            )
        if request.sampling.prompt_logprobs is not None:
            message = f"prompt_logprobs cannot be had of {PARAM}: they are of tokens"
            raise InvalidRequestError(message, param="prompt_logprobs")
        embeds.check(request.prompt_token_ids)
        self._check_memory(embeds.num_bytes, held)

    def _check_memory(self, num_bytes: int, held: Iterable[Sequence]) -> None:
        if num_bytes > self._max_bytes:
            raise InvalidRequestError(
                f"{PARAM} has {num_bytes} bytes; at most {self._max_bytes} are taken here: see "
                "--prompt-embeds-bytes",
                param=PARAM,
            )
        num_held = sum(seq.embeds.num_bytes for seq in held if seq.embeds is not None)
        if num_held + num_bytes > self._max_bytes:
            raise OverloadedError(
                f"{num_held} of {self._max_bytes} bytes for {PARAM} are in use: try again later"
            )
