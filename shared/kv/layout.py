"""The shape of KV blocks in memory and on the wire.

All blocks of a worker are equally long, so that one pool serves all of its layers. A *group* is a
set of layers that share a block table: a block belongs to one group at a time, and has the keys and
values of that group's layers for `block_size` tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from shared.kv.group_rules import FullRule, GroupKind, WindowRule

if TYPE_CHECKING:
    from shared.kv.group_rules import GroupRule

#: Raised whenever the order of the dimensions inside a block changes.
LAYOUT_VERSION = 1
#: Version of layouts beyond one group of full attention: peers without groups refuse it.
GROUPED_VERSION = 2

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
#: Dtypes with a float32 scale per token and head: the elements are values times scale.
_SCALED = ("int8", "float8_e4m3fn")
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share a block table.

    A block is contiguous: [num_layers, 2 (key, value), num_kv_heads, block_size, head_dim]. One of
    a latent group has one row per token, which gives keys and values:
    [num_layers, 1, 1, block_size, head_dim].
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    kind: GroupKind = GroupKind.FULL
    #: Tokens that a token of a group with windows reads, itself among them; 0 for other kinds.
    window: int = 0

    @property
    def num_kinds(self) -> int:
        """Number of rows per token and head: a key and a value, or one for both."""
        return 1 if self.kind is GroupKind.LATENT else 2

    def rule(self, block_size: int) -> GroupRule:
        """Return which blocks of so many tokens a sequence needs."""
        match self.kind:
            case GroupKind.FULL | GroupKind.LATENT:
                return FullRule()
            case GroupKind.WINDOW:
                return WindowRule(self.window, block_size)
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Workers may exchange blocks only if their layouts are equal.

    Made by `of`, which chooses the version; a peer's layout has the version that it names. In 8
    bits, the scales [block_size] of a head lie behind its values [block_size, head_dim], so
    that whatever moves, keeps or hashes a block has both.
    """

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: str
    version: int

    @classmethod
    def of(cls, groups: tuple[KVGroup, ...], *, block_size: int, dtype: str) -> KVLayout:
        """Return the layout of these groups, with the lowest version that supports it."""
        is_plain = len(groups) == 1 and groups[0].kind is GroupKind.FULL
        version = LAYOUT_VERSION if is_plain else GROUPED_VERSION
        return cls(groups=groups, block_size=block_size, dtype=dtype, version=version)

    @classmethod
    def single(
        cls, *, num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: str
    ) -> KVLayout:
        """Return the layout of equal layers."""
        group = KVGroup(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim)
        return cls.of((group,), block_size=block_size, dtype=dtype)

    @property
    def rules(self) -> tuple[GroupRule, ...]:
        """By group: the rule of the blocks that a sequence needs."""
        return tuple(group.rule(self.block_size) for group in self.groups)

    @property
    def num_groups(self) -> int:
        """Number of a sequence's block tables."""
        return len(self.groups)

    @property
    def num_layers(self) -> int:
        """Number of layers in all groups."""
        return sum(group.num_layers for group in self.groups)

    @property
    def is_quantized(self) -> bool:
        """Whether the blocks have quantised values with scales."""
        return self.dtype in _SCALED

    def block_shape(self, group: KVGroup) -> tuple[int, ...]:
        """Return [num_layers, kinds, num_kv_heads, block_size, row elements] of a group's block.

        A row is what a token of a head takes: head_dim elements, and those that its scale fills.
        """
        row = group.head_dim + (_SCALE_BYTES if self.is_quantized else 0)
        return group.num_layers, group.num_kinds, group.num_kv_heads, self.block_size, row

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: what the largest group's layers take."""
        most = max(math.prod(self.block_shape(group)) for group in self.groups)
        return most * _DTYPE_BYTES[self.dtype]

    @property
    def grouping(self) -> bytes:
        """The part that differs between layouts of one version; empty for the first version."""
        if self.version == LAYOUT_VERSION:
            return b""
        sizes = ((g.kind, g.num_layers, g.num_kv_heads, g.head_dim, g.window) for g in self.groups)
        return "/".join(str(part) for group in sizes for part in group).encode()

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of blocks of one table for `num_tokens`, rounded up."""
        return -(-num_tokens // self.block_size)

    def num_pool_blocks(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the blocks of all tables that a sequence of `num_tokens` tokens has at most.

        max_step_tokens: the most tokens that a step computes; a table with a window has blocks for
        those besides the window.
        """
        return sum(self.num_table_blocks(num_tokens, max_step_tokens))

    def num_table_blocks(self, num_tokens: int, max_step_tokens: int) -> list[int]:
        """Return the same by group."""
        most = self.num_blocks(num_tokens)
        return [
            most
            if rule.reach is None
            else min(most, self.num_blocks(rule.reach + max_step_tokens) + 1)
            for rule in self.rules
        ]

    def longest_sequence(self, num_blocks: int, max_step_tokens: int, most: int) -> int:
        """Return the most tokens of a sequence for which so many blocks do, up to `most`."""
        return bisect_right(
            range(most), num_blocks, key=lambda num: self.num_pool_blocks(num + 1, max_step_tokens)
        )

    def moved(self, first_block: int, num_tokens: int) -> tuple[range, ...]:
        """Return by group the blocks of a table that a prompt's hand-off moves.

        They are the blocks that the receiver needs to continue after `first_block` blocks. Both
        ends derive the same. A transfer's blocks are those of the first group, then those of the
        next, and so on.
        """
        end = self.num_blocks(num_tokens)
        # The receiver may compute the last token again, to sample from it.
        last = max(0, num_tokens - 1)
        firsts = (max(first_block, rule.first_needed(last)) for rule in self.rules)
        return tuple(range(first, end) for first in firsts)
