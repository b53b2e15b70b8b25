"""Changes to bytes and messages: the ones that parsers get wrong."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

if TYPE_CHECKING:
    from random import Random

    from google.protobuf.message import Message

NUMBERS = (0, 1, 2, -1, 7, 8, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-9, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "a",
    "\x00",
    "é",
    "\U0001f600",
    "a" * 5000,
    "../../etc/passwd",
    "{{ 1 }}",
    "%s%n",
    "\r\n",
)


def mutate(random: Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """One to four changes: bits, bytes, lengths, order, repetition."""
    for _ in range(random.randint(1, 4)):
        data = _mutate_once(random, bytearray(data), others)
    return data


def _mutate_once(random: Random, data: bytearray, others: tuple[bytes, ...]) -> bytes:
    kind = random.randrange(9)
    at = random.randrange(len(data) + 1)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = random.randrange(256)
    elif kind == 2:
        del data[at : at + random.choice((1, 2, 4, 8, 64, len(data)))]
    elif kind == 3:
        data[at:at] = random.randbytes(random.choice((1, 2, 4, 16)))
    elif kind == 4:
        data[at:at] = data[at : at + random.choice((1, 4, 16, 64))] * random.choice((1, 2, 50))
    elif kind == 5:
        data[at : at + 4] = struct.pack("<I", random.choice(NUMBERS) & 0xFFFFFFFF)
    elif kind == 6:
        data[at : at + 8] = struct.pack("<Q", random.choice((*NUMBERS, *LARGE)) & (2**64 - 1))
    elif kind == 7 and others:
        other = random.choice(others)
        data[at:] = other[random.randrange(len(other) + 1) :]
    else:
        data[at:at] = random.choice(TEXTS).encode("utf-8", "surrogatepass")
    return bytes(data)


def fill(random: Random, message: Message, depth: int = 0) -> Message:
    """Set fields at random, to values at the edges of their types."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.55 or depth > 4:
            continue
        _set(random, message, field, depth)
    return message


def change(random: Random, message: Message) -> Message:
    """The same message with one to three fields, at any depth, set to extremes."""
    if not message.DESCRIPTOR.fields:
        return message
    for _ in range(random.randint(1, 3)):
        target: Any = message
        field = random.choice(target.DESCRIPTOR.fields)
        while (
            field.message_type is not None
            and not field.is_repeated
            and random.random() < 0.7
            and field.message_type.fields
        ):
            target = getattr(target, field.name)
            field = random.choice(target.DESCRIPTOR.fields)
        target.ClearField(field.name)
        _set(random, target, field, 1)
    return message


def _set(random: Random, message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        if value.message_type is None:
            for _ in range(random.choice((1, 3, 40))):
                getattr(message, field.name)[_scalar(random, key)] = _scalar(random, value)
        return
    if field.is_repeated:
        values = getattr(message, field.name)
        for _ in range(random.choice((0, 1, 2, 30))):
            if field.message_type is not None:
                fill(random, values.add(), depth + 1)
            else:
                values.append(_scalar(random, field))
    elif field.message_type is not None:
        child = getattr(message, field.name)
        child.SetInParent()
        fill(random, child, depth + 1)
    else:
        setattr(message, field.name, _scalar(random, field))


_F = FieldDescriptor
_UNSIGNED = tuple(n for n in NUMBERS if n >= 0)
_SMALL = (0, 1, 2, 3, -1, 77, 2**31 - 1, -(2**31))
_LONG = (*NUMBERS, 2**63 - 1, -(2**63))
#: Values at the edges of each type.
_EDGES: dict[int, tuple[Any, ...]] = {
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), _UNSIGNED),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), (*_UNSIGNED, *LARGE)),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64), _LONG),
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_ENUM), _SMALL),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_DOUBLE), FLOATS),
    _F.TYPE_BOOL: (False, True),
    _F.TYPE_STRING: TEXTS,
}


def _scalar(random: Random, field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.randbytes(random.choice((0, 1, 16, 31, 32, 33, 300)))
    return random.choice(_EDGES[field.type])


#: Any JSON, written by Python: NaN, Infinity and lone surrogates included.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 10),
    st.sampled_from([*NUMBERS, *LARGE, -(2**63) - 1, 10**30]),
    st.sampled_from(FLOATS),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(TEXTS),
    st.sampled_from(["\ud800", "a\udfff", "user", "assistant", "text", "none", "auto", "alias"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "é", ""]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
