"""The shape of KV blocks in memory and on the wire.

All blocks of a worker are equally long, so that one pool serves all of its layers. A *group* is a
set of layers that share a block table: a block belongs to one group at a time, and has the keys and
values of that group's layers for `block_size` tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from shared.kv.group_rules import (
    ChunkRule,
    FullRule,
    GroupKind,
    StateRule,
    WindowRule,
    needed_blocks,
)

if TYPE_CHECKING:
    from shared.kv.group_rules import GroupRule

#: Raised whenever the order of the dimensions inside a block changes.
LAYOUT_VERSION = 1
#: Version of layouts beyond one group of full attention: peers without groups refuse it.
GROUPED_VERSION = 2

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
#: Dtypes of codes: the elements are codes times scale.
_SCALED = ("int8", "float8_e4m3fn")
_SCALE_BYTES = 4
#: Most blocks of a sequence in a table of states: the one that it continues from, and its own.
_STATE_BLOCKS = 2
#: Blocks with states are as long as a multiple of this number of bytes.
_STATE_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class StateSection:
    """Consecutive numbers of a layer's state: rows, each of them parts one after the other."""

    num_rows: int
    #: By part: its number of heads (groups, channels), and the numbers of each. Ranks divide the
    #: heads; a part with one head is whole on every rank.
    parts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of numbers."""
        return self.num_rows * sum(heads * size for heads, size in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share a block table.

    A block is contiguous: [num_layers, 2 (key, value), num_kv_heads, block_size, head_dim]. One of
    a latent group has one row per token, which gives keys and values:
    [num_layers, 1, 1, block_size, head_dim]. One of states is float32 [num_layers, state_size].
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    kind: GroupKind = GroupKind.FULL
    #: Tokens that a token of a group with windows reads, itself among them, and those of a chunk;
    #: 0 for other kinds.
    window: int = 0
    #: Numbers of a layer's state; 0 for other kinds, which have heads instead.
    state_size: int = 0
    #: How ranks divide a state; empty: not known here. It follows from the model, so peers do not
    #: compare it.
    sections: tuple[StateSection, ...] = field(default=(), compare=False)

    @property
    def fields(self) -> tuple[str | int, ...]:
        """Everything that differs between groups, for digests."""
        of_tokens = self.kind, self.num_layers, self.num_kv_heads, self.head_dim, self.window
        return (*of_tokens, self.state_size) if self.state_size else of_tokens

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
            case GroupKind.CHUNK:
                return ChunkRule(self.window, block_size)
            case GroupKind.STATE:
                return StateRule(block_size)
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Workers may exchange blocks only if their layouts are equal.

    Made by `of`, which chooses the version; a peer's layout has the version that it names. In 8
    bits, the float32 scales [block_size] of a head lie behind its values [block_size, head_dim],
    unless the checkpoint has scales: so whatever moves, keeps or hashes a block has both.
    """

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: str
    version: int
    #: Digest of the checkpoint's scales, which are not in the blocks. Empty: in 8 bits, each token
    #: and head has a scale of its own.
    scales: str = ""

    @classmethod
    def of(
        cls, groups: tuple[KVGroup, ...], *, block_size: int, dtype: str, scales: str = ""
    ) -> KVLayout:
        """Return the layout of these groups, with the lowest version that supports it."""
        is_plain = len(groups) == 1 and groups[0].kind is GroupKind.FULL
        version = LAYOUT_VERSION if is_plain else GROUPED_VERSION
        return cls(
            groups=groups, block_size=block_size, dtype=dtype, version=version, scales=scales
        )

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
    def has_token_scales(self) -> bool:
        """Whether the blocks have codes, and a scale for each token and head."""
        return self.dtype in _SCALED and not self.scales

    @property
    def format(self) -> str:
        """What decides which bytes are kept of a number: the dtype, and stored scales."""
        return f"{self.dtype}/{self.scales}" if self.scales else self.dtype

    @property
    def num_token_groups(self) -> int:
        """Number of groups that have something of each token; those with states follow them."""
        return sum(group.kind is not GroupKind.STATE for group in self.groups)

    @property
    def num_growing_groups(self) -> int:
        """Number of groups of which a sequence needs more blocks as it grows; at least 1."""
        return max(1, self.num_token_groups)

    @property
    def has_states(self) -> bool:
        """Whether a group has states."""
        return self.num_token_groups < self.num_groups

    @property
    def can_split(self) -> bool:
        """Whether leading blocks of a prompt are all that is needed to go on behind any of them.

        Windows and states need what lies, or was, before that place alone.
        """
        return all(group.kind in (GroupKind.FULL, GroupKind.LATENT) for group in self.groups)

    def block_shape(self, group: KVGroup) -> tuple[int, ...]:
        """Return [num_layers, kinds, num_kv_heads, block_size, row elements] of a group's block.

        A row is what a token of a head takes: head_dim elements, and those that its scale fills.
        A block of states is [num_layers, state_size] of float32.
        """
        if group.kind is GroupKind.STATE:
            return group.num_layers, group.state_size
        row = group.head_dim + (_SCALE_BYTES if self.has_token_scales else 0)
        return group.num_layers, group.num_kinds, group.num_kv_heads, self.block_size, row

    @property
    def element_bytes(self) -> int:
        """Bytes of a number of a token's row."""
        return _DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: what the largest group's layers take."""
        most = max(self.used_bytes(group) for group in self.groups)
        if not self.has_states:
            return most
        # Blocks lie whole heads apart.
        heads = (self.block_shape(g)[3:] for g in self.groups if g.kind is not GroupKind.STATE)
        sizes = (math.prod(head) * _DTYPE_BYTES[self.dtype] for head in heads)
        step = math.lcm(_STATE_ALIGNMENT, *sizes)
        return -(-most // step) * step

    def used_bytes(self, group: KVGroup) -> int:
        """Bytes of a block that a group uses."""
        is_state = group.kind is GroupKind.STATE
        return math.prod(self.block_shape(group)) * (4 if is_state else _DTYPE_BYTES[self.dtype])

    @property
    def grouping(self) -> bytes:
        """The part that differs between layouts of one version; empty for the first version."""
        if self.version == LAYOUT_VERSION:
            return b""
        return "/".join(str(part) for group in self.groups for part in group.fields).encode()

    @property
    def fitting_block_size(self) -> int:
        """The least multiple of the block size with which KV fills half of a block at least."""
        tokens = [group for group in self.groups if group.kind is not GroupKind.STATE]
        # A stage of a pipeline may have no layer of theirs.
        used = max((self.used_bytes(group) for group in tokens), default=0) or self.block_bytes
        factor = 1
        while 2 * factor * used < self.block_bytes:
            factor *= 2
        return factor * self.block_size

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
        most, found = self.num_blocks(num_tokens), []
        for group, rule in zip(self.groups, self.rules, strict=True):
            if group.kind is GroupKind.STATE:
                found.append(min(most, _STATE_BLOCKS))
            elif rule.reach is None:
                found.append(most)
            else:
                found.append(min(most, self.num_blocks(rule.reach + max_step_tokens) + 1))
        return found

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
        firsts = (max(first_block, rule.first_moved(num_tokens)) for rule in self.rules)
        return tuple(range(first, end) for first in firsts)

    def needed(self, first_block: int, num_blocks: int) -> tuple[range, ...]:
        """Return by group the blocks of a table that a fetch of a prefix moves.

        The prefix's `num_blocks` blocks from block `first_block` on are asked for.
        """
        end = first_block + num_blocks
        return needed_blocks(self.rules, self.block_size, first_block, end)
