"""Facts shared by workers of one host: the kernel, and the folder of their sockets."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from shared.connector.unix.packets import connect
from shared.errors import ConfigError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Younger sockets that refuse may belong to a worker between `bind` and `listen`.
_MIN_STALE_AGE_S = 10.0


def boot_id() -> str:
    """Return an id that is equal for two processes only if they run under the same kernel."""
    return _BOOT_ID.read_text().strip()


def is_socket(path: str) -> bool:
    """Return whether there is a socket that this process can see."""
    try:
        return Path(path).is_socket()
    except OSError:
        return False


def default_runtime_dir() -> Path:
    """Return the folder of a worker that was not told one."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"baton-{os.getuid()}"


def prepare(folder: Path) -> None:
    """Create `folder` if needed; only this user may enter it.

    Raises:
        ConfigError: it cannot be created, or another user could enter it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"runtime_dir {folder}: {error}") from error
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"runtime_dir {folder} must be this user's alone (mode 0700)")


def remove_stale(folder: Path, prefix: str, kind: int = socket.SOCK_SEQPACKET) -> None:
    """Remove the sockets of killed workers. Sockets of live workers stay."""
    for path in folder.glob(f"{prefix}*.sock"):
        try:
            if time.time() - path.stat().st_mtime < _MIN_STALE_AGE_S:
                continue
            connect(path, kind).close()
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            continue  # removed meanwhile, busy, or owned by another user
