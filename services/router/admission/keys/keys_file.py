"""The file of tenants and their keys' hashes: its form, checked entry by entry.

salt_secret = "64 hex digits"        # the same on every router: cache salts are made of it

[[tenants]]
name = "acme"
weight = 2.0                         # share of a crowded cluster; default 1
max_concurrent_requests = 32
max_tokens_per_minute = 200000
operator = false                     # may read /metrics and /v1/route
models = ["llama", "embedder"]       # names of the models that it may use; default all
expires = 2027-01-01T00:00:00Z

[[tenants.keys]]
id = "16 hex digits"
sha256 = "64 hex digits"
expires = 2026-12-01T00:00:00Z
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping  # noqa: TC003 read at run time by pydantic
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from services.router.admission.caller import Caller
from services.router.admission.tenant import Tenant
from shared.errors import ConfigError

#: Names appear in logs, in labels of metrics and in file names of operators' tools.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
_Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Entry(BaseModel):
    # Values never appear in messages: a key may have been pasted where its hash belongs.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class KeyEntry(_Entry):
    """One key: its id, its hash, and when it expires."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    sha256: _Hex32
    created: AwareDatetime | None = None
    expires: AwareDatetime | None = None
    note: str = ""


class TenantEntry(_Entry):
    """One tenant; see services/router/admission/tenant.py for what its limits mean."""

    name: _Name
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    max_concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    operator: bool = False
    models: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    expires: AwareDatetime | None = None
    keys: tuple[KeyEntry, ...] = ()


class KeysFile(_Entry):
    """The whole file."""

    salt_secret: _Hex32
    tenants: tuple[TenantEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key as it is checked."""

    digest: bytes
    caller: Caller
    #: Unix time from which the key or its tenant is no longer valid; None: never.
    expires_s: float | None


def parse_keys(content: bytes) -> Mapping[str, StoredKey]:
    """Return the stored keys by their id.

    Raises:
        ConfigError: an entry is wrong; the message names it.
    """
    file = read_keys_file(content)
    secret = bytes.fromhex(file.salt_secret)
    stored: dict[str, StoredKey] = {}
    for tenant in file.tenants:
        caller = Caller(
            tenant=Tenant(
                name=tenant.name,
                weight=tenant.weight,
                max_concurrent_requests=tenant.max_concurrent_requests,
                max_tokens_per_minute=tenant.max_tokens_per_minute,
                models=None if tenant.models is None else frozenset(tenant.models),
            ),
            is_operator=tenant.operator,
            salt_secret=secret,
        )
        for key in tenant.keys:
            ends = [at.timestamp() for at in (tenant.expires, key.expires) if at is not None]
            stored[key.id] = StoredKey(
                digest=bytes.fromhex(key.sha256), caller=caller, expires_s=min(ends, default=None)
            )
    return stored


def read_keys_file(content: bytes) -> KeysFile:
    """Return the file's entries unchanged.

    Raises:
        ConfigError: see `parse_keys`.
    """
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    try:
        file = KeysFile.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # The cause would show the values.
        raise ConfigError(f"{_place(table, first['loc'])}: {first['msg']}") from None
    _check_unique(file)
    return file


def _check_unique(file: KeysFile) -> None:
    names: set[str] = set()
    owners: dict[str, str] = {}
    for tenant in file.tenants:
        if tenant.name in names:
            raise ConfigError(f"there are two tenants named {tenant.name!r}")
        names.add(tenant.name)
        for key in tenant.keys:
            for part in (key.id, key.sha256):
                if part in owners:
                    both = f"{owners[part]!r} and {tenant.name!r}"
                    raise ConfigError(f"key {key.id} is listed twice: tenants {both}")
                owners[part] = tenant.name


def _place(table: Any, path: tuple[int | str, ...]) -> str:
    """Return the place of an entry for messages, with the tenant's name if that is usable."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        try:
            table = table[step]
        except (KeyError, IndexError, TypeError):
            table = None
        if text.startswith("tenants[") and text.endswith("]") and isinstance(table, dict):
            name = table.get("name", table.get("id"))
            if isinstance(name, str) and len(name) <= 64 and name.isprintable():
                text += f" ({name})"
    return text or "the file"
