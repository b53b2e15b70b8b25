"""JSON that was read from a batch's files, as bytes again."""

from __future__ import annotations

import json
from typing import Any


def json_bytes(value: Any) -> bytes:
    """Return the JSON of a value that was read from JSON.

    NaN and infinity stay what they are: the server refuses them, and that is the answer. Half a
    pair of surrogates has no bytes in UTF-8; Python's escape of it is JSON's.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")
