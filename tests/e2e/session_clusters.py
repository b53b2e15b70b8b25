"""Clusters that tests of a folder share are stopped where the next file does not use them.

Three processes that wait cost 2 % of a core: after half a minute more than to start them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_USERS = pytest.StashKey[dict[str, set["Path"]]]()


def stop_behind(names: tuple[str, ...], item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Finish fixtures of the session, of these names, unless a test of the next file uses them."""
    if nextitem is None or nextitem.path == item.path:
        return
    manager = item.session._fixturemanager
    for name in names:
        if nextitem.path in _files_with(name, item.session):
            continue
        for definition in manager.getfixturedefs(name, item) or ():
            if definition.scope == "session":
                definition.finish(item._request)  # type: ignore[attr-defined]


def _files_with(name: str, session: pytest.Session) -> set[Path]:
    users = session.stash.setdefault(_USERS, {})
    if name not in users:
        users[name] = {each.path for each in session.items if name in _fixtures_of(each)}
    return users[name]


def _fixtures_of(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
