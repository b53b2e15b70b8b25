"""Access control, made from the router's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.router.admission.caller import ANYBODY
from services.router.admission.keys.client_keys import ClientKeys
from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from shared.errors import ConfigError
from shared.rpc.auth import AuthInterceptor, ClusterToken, anybody
from shared.rpc.exposure import require_guard

if TYPE_CHECKING:
    from services.router.admission.caller import Caller
    from services.router.config import RouterConfig
    from shared.rpc.auth import Metadata
    from shared.rpc.watched_file import WatchedFile

ROUTER_SERVICE = "baton.v1.Router"
DIRECTORY_SERVICE = "baton.v1.Directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSecurity:
    """The keys of clients and the token of the cluster's processes; None: no check."""

    keys: KeyRing | None
    token: ClusterToken | None

    @property
    def files(self) -> list[WatchedFile[Any]]:
        """Files that may change while the router runs."""
        keys = () if self.keys is None else self.keys.files
        return [*keys, *([] if self.token is None else [self.token.file])]

    def caller_of_call(self, metadata: Metadata) -> Caller:
        """Return the caller of a gRPC call.

        Raises:
            AuthenticationError: the metadata has no valid key.
        """
        return ANYBODY if self.keys is None else self.keys.caller_of_call(metadata)

    def guard(self) -> AuthInterceptor | None:
        """Return the checks before the gRPC services; clients and workers use one port."""
        if self.keys is None and self.token is None:
            return None
        clients = anybody if self.keys is None else self.keys.check
        cluster = anybody if self.token is None else self.token.check
        return AuthInterceptor(
            {ROUTER_SERVICE: clients, DIRECTORY_SERVICE: cluster}, default=clients
        )


def open_security(config: RouterConfig) -> RouterSecurity:
    """Read keys and token, and check that nothing is open by accident.

    Raises:
        ConfigError: a file cannot be used, or a service would be open beyond this machine.
    """
    access = config.access
    has_keys = config.api_keys is not None or bool(config.keys.client_keys)
    # With certificates, the directory accepts workers only, by their certificates.
    knows_workers = access.cluster_token is not None or config.tls.is_on
    if has_keys and not knows_workers and not access.insecure_bind:
        raise ConfigError(
            f"{_flag_of_keys(config)} needs --cluster-token: the gRPC port serves the directory "
            "as well, and a process that joins it as a worker gets every prompt (or use TLS, or "
            "accept this with --insecure-bind)"
        )
    for door, guarded, flags in (
        ("the OpenAI API", has_keys, "--api-keys"),
        (
            "the gRPC port (clients, and workers that join)",
            has_keys and knows_workers,
            "--api-keys and --cluster-token",
        ),
    ):
        require_guard(
            config.host if config.published_host is None else config.published_host,
            door=door,
            guarded=guarded,
            flags=flags,
            insecure=access.insecure_bind,
        )
    return RouterSecurity(
        keys=_open_keys(config),
        token=None if access.cluster_token is None else ClusterToken(access.cluster_token),
    )


def _open_keys(config: RouterConfig) -> KeyRing | None:
    if config.api_keys is not None:
        return KeyRing(FileKeys(config.api_keys))
    return KeyRing(ClientKeys(config.keys.client_keys)) if config.keys.client_keys else None


def _flag_of_keys(config: RouterConfig) -> str:
    return "--api-key" if config.api_keys is None else "--api-keys"
