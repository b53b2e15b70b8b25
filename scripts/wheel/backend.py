"""The build backend that pyproject.toml names (PEP 517): setuptools, on a copy of the repository.

In the repository, packages such as `shared` and `services` are top-level. Installed like that they
would claim those names in everybody's environment, and meet other packages of the same names. So
a copy is built in which they lie below `baton`, and import each other there. setuptools does the
rest, from the same pyproject.toml.

Equal sources make equal wheels, byte for byte: times and modes of files do not get in.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import build_meta

from scripts.wheel.imports import moved_imports
from scripts.wheel.layout import ABOUT, PACKAGE, source_files, wheel_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scripts.wheel.layout import Placed

ROOT = Path(__file__).resolve().parents[2]
#: Time of every file in the wheel, unless `SOURCE_DATE_EPOCH` says another: the first that zip has.
_EPOCH = "315532800"


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel into that folder; return its name."""
    target = str(Path(wheel_directory).resolve())
    with _moved_copy(wheel_files(ROOT)):
        return str(build_meta.build_wheel(target, config_settings))


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    """Write the metadata of the wheel into that folder; return its folder's name.

    Without this function pip builds the whole wheel to read them, and then once more. They say no
    more of the code than the package's name.
    """
    target = str(Path(metadata_directory).resolve())
    marker = f"{PACKAGE}/__init__.py"
    with _moved_copy(placed for placed in wheel_files(ROOT) if placed.target == marker):
        return str(build_meta.prepare_metadata_for_build_wheel(target, config_settings))


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Build the source distribution into that folder; return its name."""
    target = str(Path(sdist_directory).resolve())
    with _copy():
        return str(build_meta.build_sdist(target, config_settings))


def build_editable(*_: object, **__: object) -> str:
    """Refuse `pip install -e`.

    Raises:
        SystemExit: always, with what to do instead.
    """
    raise SystemExit(
        "Baton cannot be installed with -e: an environment would see the repository's packages "
        "`shared`, `services` and `kernels` under these names. Work in the repository with "
        "`make setup` and ./baton, or install a copy with `pip install .`"
    )


@contextmanager
def _moved_copy(files: Iterable[Placed]) -> Iterator[None]:
    """Enter a copy of the repository in which these files lie below `baton`."""
    with _folder() as folder:
        for name in ABOUT:
            shutil.copyfile(ROOT / name, folder / name)
        for placed in files:
            target = folder / placed.target
            target.parent.mkdir(parents=True, exist_ok=True)
            if placed.source.suffix in (".py", ".pyi"):
                source = placed.source.read_text(encoding="utf-8")
                target.write_text(moved_imports(source, str(placed.source)), encoding="utf-8")
            else:
                shutil.copyfile(placed.source, target)
        yield


@contextmanager
def _copy() -> Iterator[None]:
    """Enter a copy of what a wheel is built from, as it lies in the repository."""
    with _folder() as folder:
        for source in source_files(ROOT):
            target = folder / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        (folder / "MANIFEST.in").write_text("global-include *\n", encoding="utf-8")
        yield


@contextmanager
def _folder() -> Iterator[Path]:
    """Enter a temporary folder whose files all users may read, and only this one may write."""
    old = os.umask(0o022)
    os.environ.setdefault("SOURCE_DATE_EPOCH", _EPOCH)
    try:
        with tempfile.TemporaryDirectory(prefix="baton-build-") as name, chdir(name):
            yield Path(name)
    finally:
        os.umask(old)
