"""Families as small random models of transformers: every switch of a family is in one of them.

Windows are shorter than the longest prompt, sizes are odd, and both spellings of a config occur.
"""

from __future__ import annotations

from typing import Any

from tests.fakes.families.classic import CLASSIC
from tests.fakes.families.common import FULL, SLIDING, WINDOW
from tests.fakes.families.dense import DENSE
from tests.fakes.families.experts import MIXTURES
from tests.fakes.families.latent import LATENTS
from tests.fakes.families.recurrent import RECURRENT

__all__ = ["CASES", "FULL", "SLIDING", "WINDOW"]
#: By name: the model type, and what its config says besides the usual odd sizes.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **DENSE,
    **CLASSIC,
    **MIXTURES,
    **LATENTS,
    **RECURRENT,
}
