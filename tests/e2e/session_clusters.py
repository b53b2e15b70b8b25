"""Clusters that tests of a folder share are stopped behind the last of those tests.

To run until the session ends would cost each of their processes 0.5 % of a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def stop_behind(
    folder: Path, names: tuple[str, ...], item: pytest.Item, nextitem: pytest.Item | None
) -> None:
    """Finish fixtures of the session, of these names, unless the next test lies in the folder."""
    if nextitem is None or nextitem.path.is_relative_to(folder):
        return
    manager = item.session._fixturemanager
    for name in names:
        for definition in manager.getfixturedefs(name, item) or ():
            if definition.scope == "session":
                definition.finish(item._request)  # type: ignore[attr-defined]
