"""Which names a client may give to a request, by HTTP header or gRPC field."""

from __future__ import annotations

import re

MAX_CHARS = 128
#: What uuids, trace ids and the load balancers of the large clouds are made of.
_ALLOWED = re.compile(rf"[A-Za-z0-9._:;/+=@-]{{1,{MAX_CHARS}}}")
RULE = f"1 to {MAX_CHARS} of A-Z a-z 0-9 . _ : ; / + = @ -"


def is_request_name(text: str) -> bool:
    """Whether logs, headers and traces can carry `text` as it is."""
    return _ALLOWED.fullmatch(text) is not None
