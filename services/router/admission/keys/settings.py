"""Settings of keys that clients show and that are no tenants' keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.config import setting
from shared.errors import ConfigError

#: What a header can say without quotes.
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKeySettings:
    """vLLM's --api-key and VLLM_API_KEY. BATON_API_KEY is another thing: the SDK's own key."""

    client_keys: tuple[str, ...] = setting(
        (),
        variable="VLLM_API_KEY",
        help="keys of which clients must show one, without tenants; better in the environment as "
        "VLLM_API_KEY, where other users of this machine do not see it",
    )

    def __post_init__(self) -> None:
        if not all(map(_KEY.fullmatch, self.client_keys)):
            raise ConfigError(
                "a key of --client-keys (--api-key, VLLM_API_KEY) must be visible ASCII "
                "characters without spaces"
            )
