"""What an operator may say about a model's vectors in place of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.pooling.facts import PoolingKind, ScoreActivation


class Conversion(StrEnum):
    """What a model is made of its checkpoint."""

    #: A classifier, if the checkpoint has one or says that it scores by tokens; else an embedder.
    AUTO = "auto"
    EMBED = "embed"
    CLASSIFY = "classify"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingSettings:
    """None: as the checkpoint says."""

    conversion: Conversion = Conversion.AUTO
    kind: PoolingKind | None = None
    normalizes: bool | None = None
    activation: ScoreActivation | None = None
    #: Score by the output head's logits of these tokens: that of "no", and that of "yes".
    score_tokens: tuple[str, str] | None = None
