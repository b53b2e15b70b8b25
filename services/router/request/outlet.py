"""A shorter way for the pieces of a request: to its client, past the iterators in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.request.generation import AnswerPiece

    Look = Callable[[AnswerPiece], None]


class Outlet:
    """Takes pieces while the reader of an iterator waits for the next one.

    A piece is either given here or yielded, never both, and the order is kept. Only pieces that
    have text and tokens alone are given here.

    A layer that wraps an iterator puts its own look at each piece in front. A layer that changes,
    holds back or adds pieces, or reads them before it is asked for them, passes no outlet on.
    """

    __slots__ = ("_looks", "is_open")

    def __init__(self, looks: tuple[Look, ...], *, is_open: Callable[[], bool]) -> None:
        """Make an outlet. `looks` get each piece, in this order; the last one sends it.

        `is_open`: returns whether the client takes a piece now.
        """
        self._looks = looks
        self.is_open = is_open

    def behind(self, look: Look) -> Outlet:
        """Return an outlet that passes pieces to `look` first."""
        return Outlet((look, *self._looks), is_open=self.is_open)

    def give(self, piece: AnswerPiece) -> None:
        """Pass a piece to the client. The outlet must be open."""
        for look in self._looks:
            look(piece)
