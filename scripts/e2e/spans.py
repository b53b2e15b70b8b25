"""The spans that a request leaves whose prompt a prefill worker computes."""

from __future__ import annotations

#: Those that follow one another from the arrival of a request to its last piece.
STAGES = (
    "router.prepare", "router.queue", "router.route",
    "decode.queue", "decode.prefill", "decode.generate",
)  # fmt: skip


def spans_under(root: str) -> dict[str, str | None]:
    """All of them, and the span that each is under."""
    return {
        root: None,
        "router.prepare": root,
        "router.queue": root,
        "router.route": root,
        "router.call": root,
        "decode": "router.call",
        "decode.queue": "decode",
        "decode.prefill": "decode",
        "decode.generate": "decode",
        "decode.hand_off": "decode",
        "decode.transfer": "decode.hand_off",
        "prefill": "decode.hand_off",
        "prefill.queue": "prefill",
        "prefill.compute": "prefill",
        "prefill.transfer": "prefill",
    }
