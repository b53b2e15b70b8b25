"""What is different about two answers to the same request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.side_by_side.answer import Answer
    from tests.side_by_side.shape import Shape

#: Stands for what one of the two does not have.
NONE = "-"


@dataclass(frozen=True, slots=True)
class Difference:
    """One aspect of one request: vLLM's side and Baton's."""

    key: str
    #: `status`, `media type`, `error type|code|param`, `text`, or a path of the answer's JSON.
    aspect: str
    vllm: str
    baton: str

    @property
    def path(self) -> str:
        """The endpoint."""
        return self.key.split(" ", 2)[1]

    @property
    def field(self) -> str:
        """The field that the request is about."""
        return self.key.split(" ", 3)[2]

    @property
    def kind(self) -> str:
        """Which of the field's values."""
        return self.key.split(" ", 3)[3]

    def __str__(self) -> str:
        return f"{self.key}: {self.aspect}: vLLM {self.vllm}, Baton {self.baton}"


def differences(
    key: str, vllm: Answer, baton: Answer, *, with_text: bool = True
) -> Iterator[Difference]:
    """Compare two answers. Of another status, nothing else is compared."""
    if vllm.status != baton.status:
        yield Difference(key, "status", str(vllm.status), str(baton.status))
        return
    if vllm.media_type != baton.media_type:
        yield Difference(key, "media type", vllm.media_type or NONE, baton.media_type or NONE)
        return
    if vllm.status >= 400:
        yield from _of_errors(key, vllm, baton)
        return
    yield from _of_shapes(key, vllm.shape, baton.shape)
    if with_text and vllm.text != baton.text:
        yield Difference(key, "text", repr(vllm.text), repr(baton.text))


def _of_shapes(key: str, vllm: Shape, baton: Shape) -> Iterator[Difference]:
    """Compare types; of what one of the two does not have, nothing within."""
    missing = ""
    for path in sorted({*vllm, *baton}):
        theirs, ours = vllm.get(path, NONE), baton.get(path, NONE)
        if theirs == ours or (
            missing and path.startswith((f"{missing}.", f"{missing}[", f"{missing}:"))
        ):
            continue
        if NONE in (theirs, ours) or "object" in {theirs, ours}:
            missing = path
        yield Difference(key, path or "body", theirs, ours)


def _of_errors(key: str, vllm: Answer, baton: Answer) -> Iterator[Difference]:
    theirs, ours = vllm.error or {}, baton.error or {}
    for name in ("type", "code", "param"):
        if theirs.get(name) != ours.get(name):
            yield Difference(key, f"error {name}", str(theirs.get(name)), str(ours.get(name)))
