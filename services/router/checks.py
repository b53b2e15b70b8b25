"""What keeps a router from starting: `baton up` asks this before it starts a process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from services.router.model_text import load_text
from services.router.routing.policies.find import find_policy
from services.router.security import open_security

if TYPE_CHECKING:
    from services.router.config import RouterConfig


def check_router(config: RouterConfig) -> None:
    """Do nothing if neither a setting nor a file is known to stop this router.

    Raises:
        ConfigError: it cannot start as configured.
    """
    open_security(config)
    find_policy(config.routing_policy, random.Random())
    load_text(config)
