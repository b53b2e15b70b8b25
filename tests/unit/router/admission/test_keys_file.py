"""What a keys file may hold, and that a wrong one says which entry is wrong, never its secrets."""

from __future__ import annotations

import pytest

from services.router.admission.keys.api_key import digest, key_id_of, new_key
from services.router.admission.keys.keys_file import parse_keys
from services.router.admission.tenant import Tenant
from shared.errors import ConfigError

SECRET = "ab" * 32
HEAD = f'salt_secret = "{SECRET}"\n'
A = '[[tenants]]\nname = "a"\n'
B = '[[tenants]]\nname = "b"\n'
KEY = '[[tenants.keys]]\nid = "0123456789abcdef"\nsha256 = "' + "11" * 32 + '"\n'


def test_a_tenant_has_what_the_file_says() -> None:
    text = (
        HEAD + A + "weight = 2\nmax_concurrent_requests = 3\nmax_tokens_per_minute = 4\n"
        'models = ["m", "n"]\n'
        "operator = true\nexpires = 2030-01-01T00:00:00Z\n" + KEY + "expires = 2031-01-01T00:00:00Z"
    )
    (stored,) = parse_keys(text.encode()).values()
    assert stored.caller.tenant == Tenant(
        name="a",
        weight=2.0,
        max_concurrent_requests=3,
        max_tokens_per_minute=4,
        models=frozenset({"m", "n"}),
    )
    assert stored.caller.is_operator
    # The earlier end counts.
    assert stored.expires_s == 1893456000.0
    assert stored.digest == bytes.fromhex("11" * 32)


def test_an_empty_list_of_models_is_no_model_and_no_list_is_all() -> None:
    (stored,) = parse_keys((HEAD + A + "models = []\n" + KEY).encode()).values()
    tenant = stored.caller.tenant
    assert not tenant.may_use(["m"])
    assert Tenant(name="a").may_use(["m"])
    assert Tenant(name="a", models=frozenset({"alias"})).may_use(["m", "alias"])


def test_defaults_ask_for_nothing() -> None:
    (stored,) = parse_keys((HEAD + A + KEY).encode()).values()
    assert stored.caller.tenant == Tenant(name="a")
    assert (stored.caller.is_operator, stored.expires_s) == (False, None)
    assert parse_keys(HEAD.encode()) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "salt_secret: Field required"),
        ('salt_secret = "abc"', "salt_secret: String should match"),
        ("salt_secret = ", "not valid TOML"),
        (HEAD + "[[tenants]]\n", r"tenants\[0\].name: Field required"),
        (HEAD + A + "wieght = 1", r"tenants\[0\] \(a\).wieght: Extra inputs are not permitted"),
        (HEAD + A + "weight = 0", r"tenants\[0\] \(a\).weight: Input should be greater than 0"),
        (HEAD + A + "weight = nan", r"tenants\[0\] \(a\).weight"),
        (HEAD + A + "max_concurrent_requests = 0", r"\(a\).max_concurrent_requests"),
        (HEAD + A + B + "expires = 2030-01-01", r"tenants\[1\] \(b\).expires"),
        # A time without a zone would mean another moment on every machine.
        (HEAD + A + "expires = 2030-01-01T00:00:00", r"tenants\[0\] \(a\).expires"),
        (HEAD + '[[tenants]]\nname = "a b"', r"tenants\[0\] \(a b\).name"),
        (HEAD + '[[tenants]]\nname = ""', r"tenants\[0\] \(\).name"),
        (HEAD + A + 'models = "m"', r"\(a\).models"),
        (HEAD + A + 'models = [""]', r"\(a\).models"),
        (HEAD + A + A, "two tenants named 'a'"),
        (HEAD + A + KEY + B + KEY, "key 0123456789abcdef is listed twice: tenants 'a' and 'b'"),
        (HEAD + A + '[[tenants.keys]]\nid = "0123456789abcdef"', r"sha256: Field required"),
    ],
)
def test_a_wrong_entry_is_named(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        parse_keys(text.encode())
    assert SECRET not in str(error.value)


def test_a_key_that_was_pasted_instead_of_its_hash_is_not_shown() -> None:
    key = new_key().text
    text = HEAD + A + f'[[tenants.keys]]\nid = "0123456789abcdef"\nsha256 = "{key}"'
    with pytest.raises(ConfigError) as caught:
        parse_keys(text.encode())
    error: BaseException | None = caught.value
    while error is not None:
        if not error.__suppress_context__ or error is caught.value:
            assert key not in str(error)
        error = error.__cause__


def test_keys_are_random_and_only_their_hash_is_stored() -> None:
    made = [new_key() for _ in range(100)]
    assert len({key.text for key in made}) == len({key.key_id for key in made}) == 100
    for key in made:
        assert key.text.startswith("bt-")
        assert key_id_of(key.text.encode()) == key.key_id
        assert key.sha256 == digest(key.text.encode()).hex()
        # 32 random bytes beyond the id: over 128 bits, so that a plain hash is enough.
        assert len(key.text) == len("bt-") + 16 + 1 + 43
        assert key.text not in repr(key)


@pytest.mark.parametrize("text", ["", "bt-", "sk-abc", "bt-" + "g" * 16 + "-" + "A" * 43])
def test_other_text_is_no_key(text: str) -> None:
    assert key_id_of(text.encode()) is None
    key = new_key().text
    for changed in (key + "A", key[:-1], key + "\n", key.upper(), " " + key):
        assert key_id_of(changed.encode()) is None
