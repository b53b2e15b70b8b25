"""Checks of a process's environment, mainly in containers: limits, folders, Redis, certificates."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cli.doctor.finding import fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cli.doctor.finding import Finding
    from cli.security.access import Secure

#: Memory limits of the two versions of cgroups, and CPU time per period.
_MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
_CPU_LIMIT = "cpu.max"
_CPU_LIMIT_V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
#: In the first version no limit is a number near 2^63.
_UNLIMITED_BYTES = 2**60
_CGROUPS = Path("/sys/fs/cgroup")
_MIN_MEMORY_BYTES = 2 * 2**30
_MIN_FREE_BYTES = 2**30
_RENEW = timedelta(days=7)
_LOCAL_REDIS = ("127.0.0.1", 6379)
#: By variable: the folders that processes write to.
_FOLDERS = {
    "BATON_CACHE_DIR": "compiled kernels, hashes of weights, what is read from GGUF files",
    "BATON_RUNTIME_DIR": "sockets of one host's workers",
    "BATON_KV_OFFLOAD_DISK_DIR": "KV blocks on disk",
}


def check_surroundings(
    environ: Mapping[str, str], *, secure: Secure | None = None, cgroups: Path = _CGROUPS
) -> Iterator[Finding]:
    """Run all checks here. `environ` is that of the process, as the services read it."""
    yield from check_limits(cgroups)
    yield from check_folders(environ)
    yield from check_redis(environ)
    yield from check_certificate(secure)
    yield from check_tracing(environ)


def check_limits(cgroups: Path) -> Iterator[Finding]:
    """Check the limits of the container; no finding without limits."""
    limit = next(filter(None, (_number(cgroups / name) for name in _MEMORY_LIMITS)), None)
    if limit is not None and limit < _UNLIMITED_BYTES:
        text = f"{limit / 2**30:.1f} GiB for this container"
        if limit < _MIN_MEMORY_BYTES:
            yield warn("memory limit", text, "give it more, or fewer blocks: --num-blocks")
        else:
            yield ok("memory limit", text)
    cores = _cpu_quota(cgroups)
    if cores is not None:
        text = f"{cores:.1f} cores for this container"
        if cores < 1:
            yield warn("cpu limit", text, "steps are interrupted at every period: give it a core")
        else:
            yield ok("cpu limit", text)


def check_folders(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that folders are writable and have space."""
    folders = {name: environ[name] for name in _FOLDERS if environ.get(name)}
    for name, folder in (*folders.items(), ("TMPDIR", tempfile.gettempdir())):
        purpose = _FOLDERS.get(name, "temporary files")
        if not Path(folder).is_dir():
            yield warn(folder, f"is not there ({purpose})", f"make it, or set {name}")
            continue
        if not os.access(folder, os.W_OK):
            yield fail(
                folder, f"cannot be written to ({purpose})", f"mount a volume, or set {name}"
            )
            continue
        free = shutil.disk_usage(folder).free
        text = f"{free / 2**30:.1f} GiB free ({purpose})"
        if free < _MIN_FREE_BYTES and name == "BATON_KV_OFFLOAD_DISK_DIR":
            yield warn(folder, text, "the disk tier drops what has no room")
        else:
            yield ok(folder, text)


def check_redis(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the directory in the services' settings, or recommend one."""
    url = environ.get("BATON_REDIS_URL")
    if url is None:
        yield _local_redis()
        return
    from redis.exceptions import RedisError

    from shared.errors import ConfigError

    password_file = environ.get("BATON_REDIS_PASSWORD_FILE")
    # Never the URL: it may contain a password.
    where = url.rpartition("@")[2]
    try:
        took_s = asyncio.run(_ping(url, None if password_file is None else Path(password_file)))
    except (RedisError, ConfigError, OSError) as error:
        yield fail("redis", f"{where}: {error}", "is it up, and are user and password right?")
        return
    yield ok("redis", f"{where} answers in {took_s * 1e3:.1f} ms")


def check_certificate(secure: Secure | None) -> Iterator[Finding]:
    """Check that the certificate is valid and belongs to its CA, and its remaining time."""
    if secure is None:
        yield ok("tls", "off")
        return
    from shared.errors import ConfigError
    from shared.rpc.tls.certificates import read_certificates
    from shared.rpc.tls.settings import TlsSettings

    if secure.cert is None or secure.key is None:
        yield ok("tls", f"trusts {secure.ca}; no certificate to show")
        return
    settings = TlsSettings(tls_cert=secure.cert, tls_key=secure.key, tls_ca=secure.ca)
    try:
        found = read_certificates(settings)
    except ConfigError as error:
        yield fail("tls", str(error), "make new certificates: baton certs")
        return
    left = found.not_after - datetime.now(UTC)
    text = f"{secure.cert}, valid until {found.not_after:%Y-%m-%d %H:%M} UTC"
    if left < _RENEW:
        yield warn("tls", text, "renew it; processes read the files again by themselves")
    else:
        yield ok("tls", text)


def check_tracing(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check where traces would be sent."""
    from shared.errors import ConfigError
    from shared.telemetry.tracing_settings import endpoint, is_wanted

    try:
        wanted = is_wanted(environ)
    except ConfigError as error:
        yield fail("traces", str(error), "unset it, or name one that there is")
        return
    yield ok("traces", f"to {endpoint(environ)}" if wanted else "off")


def _local_redis() -> Finding:
    try:
        with socket.create_connection(_LOCAL_REDIS, timeout=1):
            return ok("redis", f"listens on {_LOCAL_REDIS[0]}:{_LOCAL_REDIS[1]}")
    except OSError:
        where = shutil.which("redis-server")
        text = f"installed ({where}), not running" if where else "not installed"
        return ok("redis", f"{text}; optional: without it the directory is in the router")


async def _ping(url: str, password_file: Path | None) -> float:
    from shared.directory.redis.url import close_client, open_client

    client = open_client(url, password_file=password_file)
    try:
        await client.ping()
        began_s = time.monotonic()
        await client.ping()
        return time.monotonic() - began_s
    finally:
        await close_client(client)


def _cpu_quota(cgroups: Path) -> float | None:
    """Return the limit of cores; None: no limit."""
    try:
        quota, _, period = (cgroups / _CPU_LIMIT).read_text(encoding="ascii").strip().partition(" ")
    except OSError:
        quota, period = (str(_number(cgroups / name) or "max") for name in _CPU_LIMIT_V1)
    if not quota.isdecimal() or not period.isdecimal():
        return None
    return int(quota) / int(period)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
