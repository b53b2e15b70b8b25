"""Tenant limits for every request, and counters of each tenant's use."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from services.router.doors.rate_headers import note_tenant
from shared.errors import BatonError, OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from services.router.admission.entrance import Quotas
    from services.router.admission.tenant_metrics import TenantMetrics
    from services.router.request.generation import AnswerPiece, GenerationRequest, Generator
    from services.router.request.outlet import Outlet


class LimitedGenerator:
    """A Generator that applies tenant limits to another one."""

    def __init__(
        self,
        generator: Generator,
        limits: Quotas,
        metrics: TenantMetrics,
        *,
        max_model_len: Callable[[], int],
    ) -> None:
        self._generator = generator
        self._limits = limits
        self._metrics = metrics
        self._max_model_len = max_model_len

    async def generate(
        self, request: GenerationRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[AnswerPiece, None]:
        """See Generator."""
        tenant = request.tenant
        note_tenant(tenant)
        num_prompt_tokens = len(request.prompt_token_ids)
        num_tokens, begun = 0, False

        def count(piece: AnswerPiece) -> None:
            nonlocal num_tokens, begun
            begun = True
            num_tokens += len(piece.token_ids)

        outlet = None if outlet is None else outlet.behind(count)
        try:
            async with self._limits.enter(tenant, self._most_tokens(request)) as permit:
                # The prompt counts, unless an error before the first piece ends the request.
                permit.num_tokens = num_prompt_tokens
                answers = cast(
                    "AsyncGenerator[AnswerPiece]", self._generator.generate(request, outlet)
                )
                try:
                    async with aclosing(answers) as pieces:
                        async for piece in pieces:
                            count(piece)
                            yield piece
                except BatonError:
                    if not begun:
                        permit.num_tokens = 0
                    raise
                finally:
                    permit.num_tokens += num_tokens
        except OverloadedError as error:
            self._metrics.refused(tenant.name, error.reason)
            raise
        finally:
            used = num_prompt_tokens if begun else 0
            self._metrics.used(tenant.name, num_prompt_tokens=used, num_output_tokens=num_tokens)

    def _most_tokens(self, request: GenerationRequest) -> int:
        """Return the most tokens that the request can use; 0 if its tenant has no limit.

        Without max_tokens an answer may fill the context. Few answers do, so then at most the
        tenant's limit per minute is set aside: a lower limit must not refuse such requests.
        """
        per_minute = request.tenant.max_tokens_per_minute
        if per_minute is None:
            return 0
        num_prompt_tokens, n = len(request.prompt_token_ids), request.params.n
        if request.params.max_tokens is not None:
            return num_prompt_tokens + n * request.params.max_tokens
        left = max(0, self._max_model_len() - num_prompt_tokens)
        return max(num_prompt_tokens + 1, min(per_minute, num_prompt_tokens + n * left))
