"""Streams of bfloat16 numbers: bit-exact for any bytes, shorter for KV, and checked when read."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.bf16_stream import (
    HEADER_BYTES,
    StreamError,
    native,
    pack,
    reference,
    stream_bytes,
    unpack,
)
from kernels.native.block_copy import checksum_blocks
from kernels.native.build import FLAGS, SOURCES, find_compiler
from shared.connector.protocol.block_copy import block_ranges
from shared.kv.cut import Cut

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CHUNK_BYTES = 4096


def normal(num: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.uint8]:
    numbers = torch.randn(num, generator=torch.Generator().manual_seed(seed)) * scale
    return numbers.bfloat16().view(torch.int16).numpy().view(np.uint8)


def numbers_of(*bits: int, num: int = 2048) -> NDArray[np.uint8]:
    return np.resize(np.array(bits, "<u2"), num).view(np.uint8)


#: NaNs with payloads, infinities, denormals, zeros of both signs, and the largest numbers.
SPECIAL = (
    0x7FC0,
    0xFF81,
    0x7F80,
    0xFF80,
    0x0001,
    0x8001,
    0x007F,
    0,
    0x8000,
    0x7F7F,
    0xFF7F,
    0x3F80,
)
CONTENTS = {
    "normal": normal(5000),
    "tiny": normal(5000, scale=1e-38),
    "huge": normal(5000, scale=1e38),
    "all-patterns": np.arange(1 << 16, dtype="<u2").view(np.uint8),
    "special": numbers_of(*SPECIAL, num=4099),
    "one-nan": np.concatenate((normal(2047), numbers_of(0x7FC1, num=1))),
    "relu": np.where(normal(4096).view("<u2") & 0x8000, 0, normal(4096).view("<u2")).view(np.uint8),
    "zeros": np.zeros(9000, np.uint8),
    "noise": np.random.default_rng(0).integers(0, 256, 9001, np.uint8),
}


def round_trip(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Check that both implementations make the same stream, and read each other's."""
    stream, out = pack(data), np.zeros(len(data), np.uint8)
    assert stream.tobytes() == reference.pack(data.tobytes())
    assert stream_bytes(stream[:HEADER_BYTES].tobytes()) == len(stream)
    unpack(stream, out)
    assert np.array_equal(out, data)
    assert reference.unpack(stream.tobytes(), len(data)) == data.tobytes()
    return stream


@pytest.mark.parametrize("content", CONTENTS)
def test_every_content_comes_back(content: str) -> None:
    data = CONTENTS[content]
    stream = round_trip(data)
    # A header for the stream and one per chunk, at worst.
    num_chunks = -(-len(data) // CHUNK_BYTES)
    assert len(stream) <= len(data) + HEADER_BYTES + 4 * num_chunks
    shrinks = content not in ("all-patterns", "special", "one-nan", "noise")
    assert (len(data) / len(stream) > 1.29) == shrinks


@settings(max_examples=60, deadline=None)
@given(
    exponent=st.integers(0, 255),
    spread=st.integers(0, 40),
    num_bytes=st.integers(1, 2 * CHUNK_BYTES + 130),
    offset=st.integers(0, 33),
    odd=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 0xFFFF)), max_size=8),
    seed=st.integers(0, 99),
)
def test_any_exponents_length_and_alignment_come_back(
    exponent: int,
    spread: int,
    num_bytes: int,
    offset: int,
    odd: list[tuple[int, int]],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 1 << 16, num_bytes // 2 + 20, np.uint16) & 0x807F
    numbers |= (rng.integers(exponent, exponent + spread + 1, len(numbers)) % 256 << 7).astype(
        "<u2"
    )
    for at, bits in odd:
        numbers[at % len(numbers)] = bits
    round_trip(numbers.view(np.uint8)[offset:][:num_bytes])


def test_the_smallest_exponent_of_the_codes_and_those_beside_it() -> None:
    """The escapes begin exactly below the fourteenth exponent from the largest one."""
    for number, num_escapes in ((120 - 13, 0), (120 - 14, 1), (0, 0), (1, 1)):
        data = numbers_of(120 << 7)
        data.view("<u2")[777] = number << 7 | 0x8055
        stream = round_trip(data)
        assert int.from_bytes(stream[HEADER_BYTES + 2 :][:2].tobytes(), "little") == num_escapes


def test_scattered_items_are_packed_with_the_checksums_of_their_bytes() -> None:
    rows = normal(3 * 6000, seed=3).reshape(3, -1).copy()
    cuts = [Cut(((2, 4096), (6001, 3001))), Cut(((0, 12000),))]
    streams, checksums = native.pack_ranges(block_ranges(rows, [2, 0], cuts))
    items = [
        np.concatenate([rows[b][s : s + n] for s, n in c.ranges])
        for b, c in zip([2, 0], cuts, strict=True)
    ]
    assert streams.tobytes() == b"".join(reference.pack(item.tobytes()) for item in items)
    assert (
        checksums.tolist()
        == checksum_blocks(items[:1]).tolist() + checksum_blocks(items[1:]).tolist()
    )
    out = np.zeros_like(rows)
    there = block_ranges(out, [1, 2], [Cut(((7, 97), (400, 7000))), cuts[1]])
    assert native.unpack_ranges(streams, there).tolist() == checksums.tolist()
    assert np.array_equal(np.concatenate((out[1, 7:104], out[1, 400:7400])), items[0])
    assert np.array_equal(out[2], items[1])
    assert not out[0].any()
    assert not out[1, 104:400].any()


def test_checksums_are_those_of_whole_items() -> None:
    """Of every size around the blocks of the checksum and the chunks of a stream."""
    sizes = (241, 300, 1023, 1024, 1025, 2048, 4095, 4096, 4097, 5121, 8192, 8193, 12288, 12289)
    rows = normal(7000).reshape(1, -1)
    cuts = [Cut(((at, size),)) for at, size in enumerate(sizes)]
    streams, checksums = native.pack_ranges(block_ranges(rows, [0] * len(cuts), cuts))
    items = [rows[0, at : at + size] for at, size in enumerate(sizes)]
    assert checksums.tolist() == [int(checksum_blocks([item])[0]) for item in items]
    out = np.zeros((len(cuts), rows.size), np.uint8)
    there = block_ranges(out, range(len(cuts)), cuts)
    assert native.unpack_ranges(streams, there).tolist() == checksums.tolist()


class Fenced:
    """Room for `size` bytes whose neighbours must not change."""

    def __init__(self, size: int) -> None:
        self._all = np.full(size + 128, 0xA5, np.uint8)
        self.bytes = self._all[64 : 64 + size]

    def check(self) -> None:
        assert (self._all[:64] == 0xA5).all()
        assert (self._all[-64:] == 0xA5).all()


STREAM = pack(normal(5003, seed=5))


def refuses(stream: NDArray[np.uint8], num_bytes: int, message: str | None = None) -> None:
    """Both implementations refuse it by name, and neither leaves its room."""
    room = Fenced(num_bytes)
    with pytest.raises(StreamError, match=message):
        unpack(stream.copy(), room.bytes)
    room.check()
    with pytest.raises(StreamError, match=message):
        reference.unpack(stream.tobytes(), num_bytes)


def test_a_stream_that_is_cut_off_is_refused() -> None:
    for end in (0, 1, 23, 24, 25, 28, 2000, 4 + 24 + 3072, len(STREAM) - 1):
        refuses(STREAM[:end], 10006, "it ends early")
    # Its own account of its length does not help.
    for end in (24, 28, 100, len(STREAM) - 1):
        stream = STREAM[:end].copy()
        stream[16:24].view("<u8")[0] = end - 24
        refuses(stream, 10006, "ends early")


def test_a_stream_of_other_bytes_is_refused() -> None:
    for at in (0, 4, 6):
        stream = STREAM.copy()
        stream[at] ^= 1
        refuses(stream, 10006, "format or version")
    refuses(STREAM, 10004, "number of bytes")
    refuses(np.append(STREAM, np.uint8(0)), 10006, "goes on")
    stream = np.append(STREAM, np.uint8(0))
    stream[16:24].view("<u8")[0] += 1
    refuses(stream, 10006, "goes on")
    for at, value in ((24, 242), (25, 0), (25, 3), (26, 77)):
        stream = STREAM.copy()
        stream[at] = value
        refuses(stream, 10006)
    stream = STREAM.copy()
    stream[28 + 2048] |= 0x0F  # an escape that is not listed
    refuses(stream, 10006, "contradicts itself")


@settings(max_examples=80, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), max_size=6),
    start=st.integers(0, 40),
    num_bytes=st.integers(1, 10100),
)
def test_whatever_comes_is_numbers_or_an_error(
    flips: list[tuple[int, int]], start: int, num_bytes: int
) -> None:
    stream = STREAM.copy() if start < 20 else STREAM[start - 20 :].copy()
    for at, value in flips:
        # Headers are hit often.
        stream[at % 40 if at % 2 else at % len(stream)] = value
    if start % 2:
        num_bytes = 10006
    room = Fenced(num_bytes)
    try:
        expected = reference.unpack(stream.tobytes(), num_bytes)
    except StreamError:
        with pytest.raises(StreamError):
            unpack(stream, room.bytes)
    else:
        unpack(stream, room.bytes)
        assert room.bytes.tobytes() == expected
    room.check()


PLAIN = """
#include "transfer/bf16_stream.h"
using namespace baton;
baton::RunningChecksum::RunningChecksum(const void*, size_t) {}
void baton::RunningChecksum::read_to(size_t) {}
uint64_t baton::RunningChecksum::result() { return 0; }
extern "C" size_t pack(const uint8_t* from, size_t size, uint8_t* to) {
  return pack_stream(from, size, to);
}
extern "C" int unpack(const uint8_t* from, size_t from_size, uint8_t* to, size_t size) {
  size_t used;
  return int(unpack_stream(from, from_size, to, size, &used));
}
"""


def test_a_processor_without_vectors_makes_the_same_streams(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text(PLAIN)
    flags = [flag for flag in FLAGS if not flag.startswith(("-march", "-O"))]
    target = tmp_path / "plain.so"
    # As one unit: a compiler's time goes to the headers of each.
    sources = ["-include", "transfer/bf16_stream.cpp", tmp_path / "plain.cpp"]
    command = [find_compiler(), *flags, "-O0", f"-I{SOURCES}", *sources]
    subprocess.run([*command, "-o", target], check=True)
    library = ctypes.CDLL(str(target))
    library.pack.restype = ctypes.c_size_t
    for data in CONTENTS.values():
        room, out = Fenced(2 * len(data) + 64), Fenced(len(data))
        addresses = (ctypes.c_void_p(each.ctypes.data) for each in (data, room.bytes, out.bytes))
        source, stream, there = addresses
        used = library.pack(source, ctypes.c_size_t(len(data)), stream)
        assert room.bytes[:used].tobytes() == pack(data).tobytes()
        size = ctypes.c_size_t(len(data))
        assert library.unpack(stream, ctypes.c_size_t(used), there, size) == 0
        assert np.array_equal(out.bytes, data)
        assert library.unpack(stream, ctypes.c_size_t(used - 1), there, size) != 0
        out.check()
