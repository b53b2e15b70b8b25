"""`baton keys`: makes, lists and revokes API keys in the file that routers read."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import tempfile
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    help="API keys: make, list, revoke. Routers see a change within a second, without a restart.",
    no_args_is_help=True,
)

File = Annotated[
    Path,
    typer.Option(
        "--file",
        help="The keys file, as given to the router's --api-keys.",
        envvar="BATON_API_KEYS",
    ),
]
DEFAULT_FILE = Path("keys.toml")

_HEAD = """\
Tenants and the hashes of their API keys: every router of a cluster reads the same file.
A tenant may also have weight, max_concurrent_requests, max_tokens_per_minute, operator (may read
/metrics and /v1/route) and expires; docs/security.md explains them.
"""


@app.command()
def new(
    tenant: Annotated[str, typer.Option(help="Tenant of the key; a new one is added to the file.")],
    file: File = DEFAULT_FILE,
    expires_days: Annotated[
        float | None, typer.Option(min=0, help="Days until the key expires; default: never.")
    ] = None,
    note: Annotated[str, typer.Option(help="Note about the key's use.")] = "",
) -> None:
    """Make a key and print it. This is the only time: the file has its hash only."""
    import tomlkit

    from services.router.admission.keys.api_key import new_key

    made = new_key()
    now = datetime.now(UTC).replace(microsecond=0)
    with _edited(file, create=True) as document:
        entry = tomlkit.table()
        entry.update({"id": made.key_id, "sha256": made.sha256, "created": now})
        if expires_days is not None:
            entry["expires"] = now + timedelta(days=expires_days)
        if note:
            entry["note"] = note
        keys = _tenant(document, tenant).setdefault("keys", tomlkit.aot())
        keys.append(entry)
    typer.echo(f"key {made.key_id} of {tenant} is in {file}; keep it, it is shown once:", err=True)
    sys.stdout.write(f"{made.text}\n")


@app.command("list")
def show(file: File = DEFAULT_FILE) -> None:
    """Show every tenant and the ids of its keys."""
    from services.router.admission.keys.keys_file import read_keys_file

    for tenant in read_keys_file(_read(file)).tenants:
        limits = [f"weight {tenant.weight:g}"]
        if tenant.max_concurrent_requests is not None:
            limits.append(f"{tenant.max_concurrent_requests} requests at once")
        if tenant.max_tokens_per_minute is not None:
            limits.append(f"{tenant.max_tokens_per_minute} tokens a minute")
        if tenant.models is not None:
            limits.append(f"models {', '.join(tenant.models) or 'none'}")
        if tenant.operator:
            limits.append("operator")
        typer.echo(f"{tenant.name}  ({', '.join(limits)}{_end(tenant.expires)})")
        for key in tenant.keys:
            since = f"  since {key.created:%Y-%m-%d}" if key.created else ""
            note = f"  {key.note}" if key.note else ""
            typer.echo(f"  {key.id}{since}{_end(key.expires)}{note}")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The id, as `list` shows it; not the key itself.")],
    file: File = DEFAULT_FILE,
) -> None:
    """Revoke a key. Its running requests finish; new ones are refused."""
    with _edited(file, create=False) as document:
        for tenant in document.get("tenants", ()):
            keys = tenant.get("keys", ())
            for place, key in enumerate(keys):
                if key["id"] == key_id:
                    del keys[place]
                    typer.echo(f"revoked {key_id} of {tenant['name']}")
                    return
        raise CommandError(f"{file} has no key of this id", advice="`baton keys list` shows them")


def _end(expires: datetime | None) -> str:
    if expires is None:
        return ""
    verb = "expired" if expires <= datetime.now(UTC) else "until"
    return f"  {verb} {expires:%Y-%m-%d %H:%M}Z"


def _tenant(document: Any, name: str) -> Any:
    """Return the tenant's table; add one if there is none."""
    import tomlkit

    tenants = document.setdefault("tenants", tomlkit.aot())
    for tenant in tenants:
        if tenant.get("name") == name:
            return tenant
    table = tomlkit.table()
    table["name"] = name
    tenants.append(table)
    return tenants[-1]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise CommandError(message, advice="`baton keys new --tenant NAME` makes one") from error


@contextmanager
def _edited(file: Path, *, create: bool) -> Iterator[Any]:
    """Yield the file's content, comments included; write it back completely, or not after an error.

    A router that reads meanwhile gets the old or the new file. One process edits at a time.
    """
    import tomlkit

    from services.router.admission.keys.keys_file import read_keys_file

    # A link stays a link.
    file = file.resolve()
    with _only_one(file.parent):
        if create and not file.exists():
            document = tomlkit.document()
            for line in _HEAD.splitlines():
                document.add(tomlkit.comment(line))
            document["salt_secret"] = secrets.token_hex(32)
        else:
            content = _read(file)
            read_keys_file(content)
            document = tomlkit.parse(content)
        yield document
        content = tomlkit.dumps(document).encode()
        read_keys_file(content)
        _replace(file, content)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CommandError(f"cannot open {folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, content: bytes) -> None:
    """Replace the file at once. Only this user may read a new file; an old one keeps its mode.

    An old file keeps its owner, too, if this process may set it.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        with os.fdopen(descriptor, "wb") as copy:
            copy.write(content)
            copy.flush()
            os.fsync(copy.fileno())
        if file.exists():
            was = file.stat()
            Path(name).chmod(was.st_mode & 0o777)
            with suppress(PermissionError):
                os.chown(name, was.st_uid, was.st_gid)
        Path(name).replace(file)
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from error
