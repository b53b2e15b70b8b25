"""Where the SDK's key comes from, and that no error shows it."""

from __future__ import annotations

import pytest

from baton_client import AsyncBaton, InvalidRequestError
from baton_client.aio import API_KEY_VARIABLE


def sent(client: AsyncBaton) -> tuple[tuple[str, str], ...]:
    return client._metadata


def test_the_key_is_given_or_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert sent(AsyncBaton()) == ()
    assert sent(AsyncBaton(api_key="one")) == (("authorization", "Bearer one"),)
    monkeypatch.setenv(API_KEY_VARIABLE, "two\n")
    assert sent(AsyncBaton()) == (("authorization", "Bearer two"),)
    assert sent(AsyncBaton(api_key="one")) == (("authorization", "Bearer one"),)
    assert sent(AsyncBaton(api_key="")) == ()


@pytest.mark.parametrize("key", ["bt-\nsecret", "bt-sécret", "bt-\x00secret"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="api_key") as error:
        AsyncBaton(api_key=key)
    assert key not in str(error.value)
