"""Answers that are held to a shape."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anthropic
import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def structured() -> Iterator[None]:
    """Skip the test where the router says that its engines cannot be held to a shape."""
    try:
        yield
    except (openai.BadRequestError, anthropic.BadRequestError) as error:
        if "not supported" not in str(error) and "must be none or auto" not in str(error):
            raise
        pytest.skip(f"no structured output here: {error}")
