"""Checks that `baton up` runs before it starts a router."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from services.router.model_text import load_text
from services.router.routing.policies.find import find_policy
from services.router.security import open_security
from shared.rpc.tls.https import open_https

if TYPE_CHECKING:
    from services.router.config import RouterConfig


def check_router(config: RouterConfig) -> None:
    """Check the settings and files for known reasons for which this router cannot start.

    Raises:
        ConfigError: the router cannot start as configured.
    """
    open_security(config)
    open_https(config.https)
    for model in config.of_models():
        find_policy(model.routing_policy, random.Random())
        load_text(model)
