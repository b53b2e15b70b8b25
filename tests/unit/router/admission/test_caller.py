"""I7: whatever tenants are called and clients send, no two tenants have a salt in common."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from services.router.admission.caller import ANYBODY, Caller
from services.router.admission.tenant import Tenant
from shared.kv.identity import KVIdentity

SECRET = bytes(range(32))
texts = st.none() | st.text(max_size=20)


def caller(name: str, secret: bytes = SECRET) -> Caller:
    return Caller(tenant=Tenant(name=name), salt_secret=secret)


@given(st.text(max_size=20), texts, st.text(max_size=20), texts)
def test_salts_are_equal_only_for_the_same_tenant_and_the_same_given_salt(
    one: str, given_one: str | None, other: str, given_other: str | None
) -> None:
    same = (one, given_one or "") == (other, given_other or "")
    salts = caller(one).cache_salt(given_one), caller(other).cache_salt(given_other)
    assert (salts[0] == salts[1]) == same


@given(st.text(max_size=20), texts)
def test_a_client_cannot_write_itself_into_another_tenant(
    name: str, given_salt: str | None
) -> None:
    # Concatenation would make these equal: the boundary is part of what is hashed.
    assert caller("a").cache_salt("b" + name) != caller("ab").cache_salt(name)
    # Somebody without a key, who knows the tenant's name, is not it either.
    assert caller(name).cache_salt(given_salt) != ANYBODY.cache_salt(given_salt)
    assert caller(name).cache_salt(given_salt) != caller(name, bytes(32)).cache_salt(given_salt)


def test_without_keys_and_salts_nothing_is_kept_apart() -> None:
    assert ANYBODY.cache_salt(None) == ANYBODY.cache_salt("") == b""
    assert ANYBODY.cache_salt("one") != ANYBODY.cache_salt("two")


def test_half_a_character_is_a_salt_like_any_other() -> None:
    assert caller("a").cache_salt("\ud800") != caller("a").cache_salt("\ud801")


def test_blocks_of_two_tenants_never_have_the_same_hash() -> None:
    tokens = list(range(64))
    hashes = [
        set(KVIdentity(b"space", salt=caller(name).cache_salt(None)).hash_blocks(tokens, 16))
        for name in ("a", "b", "c")
    ]
    assert len(set.union(*hashes)) == 3 * 4


def test_every_process_derives_the_same() -> None:
    program = (
        "from services.router.admission.caller import Caller;"
        "from services.router.admission.tenant import Tenant;"
        "print(Caller(tenant=Tenant(name='a'),salt_secret=bytes(range(32))).cache_salt('x').hex())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": ".:proto", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == caller("a").cache_salt("x").hex()


def test_the_secret_is_not_shown() -> None:
    assert SECRET.hex() not in repr(caller("a"))
    assert repr(SECRET) not in repr(caller("a"))
