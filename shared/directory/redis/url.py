"""Clients of Redis from a URL: one Redis, one with TLS, or one behind Sentinels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from redis.asyncio import Redis, Sentinel
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from shared.address import split_address
from shared.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

#: Timeout of connections and answers. A Redis that is silent for longer counts as lost.
TIMEOUT_S = 2.0
SENTINEL_PORT = 26_379
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_PLAIN = ("redis", "rediss", "unix")
_SENTINEL = {"redis+sentinel": False, "rediss+sentinel": True}


class PasswordFile(CredentialProvider):
    """A password that is read from its file at every connection."""

    def __init__(self, path: Path, username: str | None) -> None:
        """Read the file once as a check.

        Raises:
            ConfigError: it cannot be read.
        """
        self._path = path
        self._username = username
        try:
            self.get_credentials()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--redis-password-file {path}: {error}") from error

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the user, if there is one, and the password, without surrounding white space."""
        password = self._path.read_text(encoding="utf-8").strip()
        return (password,) if self._username is None else (self._username, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """See `get_credentials`, which reads one line."""
        return self.get_credentials()


def open_client(
    url: str, *, password_file: Path | None = None, timeout_s: float = TIMEOUT_S
) -> Redis:
    """Return a client of the Redis at `url`; it connects on first use, and closes by `aclose`.

    `redis://[user:password@]host[:port][/db]`, the same with `rediss` for TLS, or
    `redis[s]+sentinel://[user:password@]host[:port],…/service[/db]` with the Sentinels' hosts;
    `?sentinel_username=…&sentinel_password=…` if the Sentinels require a password. TLS takes
    `?ssl_ca_certs=FILE`, and `&ssl_certfile=FILE&ssl_keyfile=FILE` to show a certificate; the
    server's certificate must name the host. With a `password_file` the URL may name a user, and no
    password.

    No command is retried: the caller decides what to do about a lost answer.

    Raises:
        ConfigError: the URL has none of these forms. The message has no password.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    scheme = url.partition(":")[0]
    try:
        if password_file is not None:
            url, options["credential_provider"] = _with_password_file(url, password_file)
        if scheme in _SENTINEL:
            return _sentinel_client(url, options, tls=_SENTINEL[scheme])
        if scheme in _PLAIN:
            return Redis.from_url(url, **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"not a usable Redis URL ({scheme}://…): {error}") from error
    known = ", ".join((*_PLAIN, *_SENTINEL))
    raise ConfigError(f"a Redis URL starts with one of {known}, not {scheme!r}")


async def close_client(client: Redis) -> None:
    """Close every connection, those to Sentinels included."""
    pool = client.connection_pool
    await client.aclose()
    await pool.disconnect()
    if isinstance(pool, SentinelConnectionPool):
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _sentinel_client(url: str, options: dict[str, Any], *, tls: bool) -> Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    service, _, database = parts.path.strip("/").partition("/")
    if not hosts or not service:
        raise ValueError("it needs the Sentinels' hosts and the service's name")
    query = parse_qs(parts.query)
    sentinel_options = dict(options)
    for name in ("username", "password"):
        if value := query.get(f"sentinel_{name}"):
            sentinel_options[name] = value[0]
    if tls:
        shown = {name: value[-1] for name, value in query.items() if name in _TLS_FILES}
        options |= {"ssl": True, **shown}
        sentinel_options |= {"ssl": True, **shown}
    if provider := sentinel_options.pop("credential_provider", None):
        options["credential_provider"] = provider
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [_address(host) for host in hosts.split(",")], sentinel_kwargs=sentinel_options, **options
    )
    master: Redis = sentinel.master_for(
        service,
        db=int(database or 0),
        username=unquote(username) or None,
        password=unquote(password) or None,
    )
    return master


def _with_password_file(url: str, path: Path) -> tuple[str, PasswordFile]:
    """Return the URL without its user, and the credentials from the file."""
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, colon, _ = credentials.partition(":")
    if colon:
        raise ConfigError("the Redis URL has a password, and so has --redis-password-file")
    plain = urlunsplit(parts._replace(netloc=hosts))
    return plain, PasswordFile(path, unquote(username) or None)


def _address(text: str) -> tuple[str, int]:
    return split_address(text.strip(), SENTINEL_PORT)
