"""A kind of difference, and whether one is of it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.side_by_side.difference import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of difference. Patterns are those of file names; `[` stands for itself.

    Several patterns have ` or ` between them.
    """

    reason: str
    where: str = "*"
    aspect: str = "*"
    vllm: str = "*"
    baton: str = "*"
    #: It depends on draws or on how fast tokens come: there may be no difference.
    is_of_chance: bool = False
    #: A client that knows the other server finds all that it reads: keys beside vLLM's, and nulls.
    is_of_keys: bool = False
    #: The page names the fields: docs/fields.md has the reason of each.
    names_fields: bool = False
    when: Callable[[Difference, Mapping[str, Collection[str]]], bool] | None = None

    def holds(self, found: Difference, known: Mapping[str, Collection[str]]) -> bool:
        """Return whether a difference is of this kind."""
        return (
            any(_matches(found.key, each) for each in self.where.split(" or "))
            and any(_matches(found.aspect, each) for each in self.aspect.split(" or "))
            and any(_matches(found.vllm, each) for each in self.vllm.split(" or "))
            and any(_matches(found.baton, each) for each in self.baton.split(" or "))
            and (self.when is None or self.when(found, known))
        )


def _matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))
