"""Families as small random models of transformers: every switch of a family is in one of them.

Windows are shorter than the longest prompt, sizes are odd, and both spellings of a config occur.
"""

from __future__ import annotations

from typing import Any

from tests.fakes.cases.classic import CLASSIC
from tests.fakes.cases.common import FULL, SLIDING, WINDOW
from tests.fakes.cases.dense import DENSE
from tests.fakes.cases.experts import MIXTURES
from tests.fakes.cases.latent import LATENTS
from tests.fakes.cases.recurrent import RECURRENT

__all__ = ["CASES", "FULL", "SLIDING", "WINDOW"]
#: By name: the model type, and what its config says besides the usual odd sizes.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **DENSE,
    **CLASSIC,
    **MIXTURES,
    **LATENTS,
    **RECURRENT,
}
