"""Rows of hidden states: as arrays, and as transformers has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: By how much float32 rows may differ that were summed in other orders.
BOUND = 1e-4


def rows_in(rows: Sequence[bytes]) -> NDArray[np.float32]:
    """[tokens, hidden size]."""
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


@torch.inference_mode()
def rows_of_transformers(
    model: Any, prompt: Sequence[int], token_ids: Sequence[int]
) -> NDArray[np.float32]:
    """The rows behind an answer's tokens: from the prompt's last token to the last but one."""
    ids = torch.tensor([[*prompt, *token_ids]])
    states = model(ids, output_hidden_states=True).hidden_states[-1]
    found: NDArray[np.float32] = states[0, len(prompt) - 1 : -1].numpy()
    return found


def check_rows(got: Sequence[bytes], want: NDArray[np.float32]) -> None:
    """Fail unless these are the rows."""
    assert len(got) == len(want)
    np.testing.assert_allclose(rows_in(got), want, atol=BOUND)
