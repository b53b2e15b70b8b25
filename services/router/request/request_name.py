"""Valid ids of requests from clients, by HTTP header or gRPC field."""

from __future__ import annotations

import re

MAX_CHARS = 128
#: Characters of UUIDs, trace ids and the ids of the large clouds' load balancers.
_ALLOWED = re.compile(rf"[A-Za-z0-9._:;/+=@-]{{1,{MAX_CHARS}}}")
RULE = f"1 to {MAX_CHARS} of A-Z a-z 0-9 . _ : ; / + = @ -"


def is_request_name(text: str) -> bool:
    """Return whether logs, headers and traces can carry `text` unchanged."""
    return _ALLOWED.fullmatch(text) is not None
