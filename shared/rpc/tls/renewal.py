"""A server context of HTTPS that follows the files it was made of."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger(__name__)


def renewed_context(
    make: Callable[[], ssl.SSLContext], version: Callable[[], object]
) -> ssl.SSLContext:
    """Return a context that serves each new connection with the newest files.

    `make` reads them, when `version` returns another value than before.
    """
    served = version()
    context = latest = make()

    def renew(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        nonlocal served, latest
        try:
            newest = version()
            if newest != served:
                latest = make()
                served = newest
        except (OSError, ssl.SSLError) as error:
            # Perhaps only one of them has been written yet.
            log.warning("tls_certificate_not_usable", error=str(error))
        if latest is not context:
            connection.context = latest

    # Called for each connection, also without a server name.
    context.sni_callback = renew
    return context
