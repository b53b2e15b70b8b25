"""Block hashes: fixed for ever, equal in every process, different for whatever differs."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kv.block_hash import block_hash, hash_blocks, root_hash
from shared.kv.identity import namespace_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE: dict[str, Any] = {
    "model_fingerprint": "llama:0123abcd",
    "dtype": "bfloat16",
    "kv_format": "bfloat16",
    "layout_version": 1,
    "block_size": 4,
}
GOLDEN_NAMESPACE = "19f5d55d2bd0826fa7cfd9fad281b83d850a1777f1b43a2d4bed3b29d3cdacb2"
GOLDEN_ROOT = "c328e55ebea81b539b59fdc508673859f2b9f2158baae61bd0062953bf259d15"
GOLDEN_BLOCKS = [
    "e082ee279d12a89644477084264903391ddc10f8c4d64ab1557909d926f3b20b",
    "547108d25b4a03aaf78cb3c31a15892e2dd3aeb39aa74bf5ff33f72f32dc525f",
]


def _fields(*fields: bytes) -> str:
    """The encoding of the module's docstring, written down a second time."""
    content = b"".join(struct.pack("<I", len(field)) + field for field in fields)
    return hashlib.sha256(content).hexdigest()


def test_golden_vectors() -> None:
    namespace = namespace_hash(**NAMESPACE)
    root = root_hash(namespace, salt=b"tenant-1")
    assert namespace.hex() == GOLDEN_NAMESPACE
    assert root.hex() == GOLDEN_ROOT
    assert [h.hex() for h in hash_blocks(root, range(9), 4)] == GOLDEN_BLOCKS


def test_the_encoding_is_the_documented_one() -> None:
    namespace = namespace_hash(**NAMESPACE)
    one, four = struct.pack("<I", 1), struct.pack("<I", 4)
    assert namespace.hex() == _fields(
        b"baton.kv.namespace.v1", b"llama:0123abcd", b"bfloat16", b"bfloat16", one, four
    )
    root = root_hash(namespace, b"l", b"s")
    assert root.hex() == _fields(b"baton.kv.root.v1", namespace, b"l", b"s")
    packed = struct.pack("<2I", 7, 70_000)
    assert block_hash(root, [7, 70_000], [b"x"]).hex() == _fields(
        b"baton.kv.block.v1", root, packed, b"x"
    )


def test_another_process_with_another_hash_seed_agrees() -> None:
    script = (
        "from shared.kv.identity import *\n"
        f"identity = KVIdentity(namespace_hash(**{NAMESPACE!r}), salt=b'tenant-1')\n"
        "print([h.hex() for h in identity.hash_blocks(range(9), 4)])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONHASHSEED": "4711", "PYTHONPATH": "."},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert output.strip() == str(GOLDEN_BLOCKS)


@pytest.mark.parametrize(
    "change",
    [
        {"model_fingerprint": "llama:other"},
        {"dtype": "float16"},
        {"kv_format": "fp8_e4m3"},
        {"layout_version": 2},
        {"block_size": 8},
    ],
)
def test_whatever_bytes_depend_on_separates_namespaces(change: dict[str, Any]) -> None:
    assert namespace_hash(**NAMESPACE) != namespace_hash(**(NAMESPACE | change))


def test_only_full_blocks_have_hashes() -> None:
    root = bytes(32)
    assert [len(hash_blocks(root, range(n), 4)) for n in (0, 3, 4, 5, 8)] == [0, 0, 1, 1, 2]


token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=24)


@given(token_lists, token_lists)
def test_blocks_are_equal_iff_everything_up_to_them_is(
    first: Sequence[int], second: Sequence[int]
) -> None:
    pairs = zip(hash_blocks(bytes(32), first, 4), hash_blocks(bytes(32), second, 4), strict=False)
    for index, (one, other) in enumerate(pairs):
        end = 4 * (index + 1)
        assert (one == other) == (list(first[:end]) == list(second[:end]))


@given(token_lists, st.integers(0, 5))
def test_a_chain_can_be_continued(tokens: Sequence[int], num_known: int) -> None:
    hashes = hash_blocks(bytes(32), tokens, 4)
    num_known = min(num_known, len(hashes))
    parent = hashes[num_known - 1] if num_known else bytes(32)
    assert hash_blocks(parent, tokens[4 * num_known :], 4) == hashes[num_known:]


@given(token_lists)
def test_a_chain_is_made_of_single_hashes(tokens: Sequence[int]) -> None:
    parent = bytes(32)
    for index, found in enumerate(hash_blocks(parent, tokens, 4)):
        parent = block_hash(parent, tokens[4 * index : 4 * index + 4])
        assert found == parent


def test_extras_count() -> None:
    plain = block_hash(bytes(32), [1, 2])
    assert plain != block_hash(bytes(32), [1, 2], [b""])
    assert block_hash(bytes(32), [1, 2], [b"ab"]) != block_hash(bytes(32), [1, 2], [b"a", b"b"])
