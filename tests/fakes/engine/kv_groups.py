"""Models whose layers are in more KV groups than they need, all of full attention.

What they answer is what one group answers, so each place that forgets a group is seen.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping


@contextmanager
def split_layers(num_groups: int) -> Iterator[None]:
    """Deal the layers of every model to so many groups, in turn, while it is made.

    That are models and engines: what they read of it, they read once.
    """

    def deal(
        kinds: Mapping[int, Hashable], sizes: Mapping[int, int]
    ) -> tuple[tuple[int, ...], ...]:
        layers = sorted(kinds)
        groups = (tuple(layers[first::num_groups]) for first in range(num_groups))
        return tuple(group for group in groups if group)

    with patch("shared.model.spec.decoder.group_layers", deal):
        yield


@contextmanager
def all_tokens_kept() -> Iterator[None]:
    """Keep the KV of all tokens, whatever windows the layers have; a group for each size of it."""
    with patch("shared.model.spec.decoder.DecoderSpec.kv_window", lambda self, layer: None):
        yield
