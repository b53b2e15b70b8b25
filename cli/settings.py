"""The settings of the services that a local cluster consists of: the services' own classes."""

from __future__ import annotations

from typing import Any

from cli.options import Service


def settings_of(service: Service) -> type[Any]:
    """The class whose fields are the flags of `baton serve SERVICE`."""
    from services.decode.config import DecodeConfig
    from services.prefill.config import PrefillConfig
    from services.router.config import RouterConfig

    classes: dict[Service, type[Any]] = {
        Service.ROUTER: RouterConfig,
        Service.PREFILL: PrefillConfig,
        Service.DECODE: DecodeConfig,
    }
    return classes[service]
