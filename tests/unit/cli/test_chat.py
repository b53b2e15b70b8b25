"""`baton chat` and `baton complete` before they reach a cluster."""

from __future__ import annotations

import pytest

from cli.chat.command import reaching
from cli.errors import EXIT_USAGE, CommandError


@pytest.mark.parametrize("address", ["router", "127.0.0.1:99999", ":50051", "::1:50051"])
def test_what_is_no_address_is_refused_with_its_rule(address: str) -> None:
    with pytest.raises(CommandError) as caught, reaching(address):
        pass
    assert str(caught.value).startswith(f"--address {address}: it must be host:port")
    assert caught.value.exit_code == EXIT_USAGE
