"""Arguments of a conversation's earlier calls, as chat templates need them."""

from __future__ import annotations

import json
from typing import Any

from shared.text.json_depth import is_too_deep

#: Bound on the arguments of a call that templates get as an object.
_MAX_DEPTH = 64


def read_arguments(value: Any) -> Any:
    """Return the arguments of an earlier call as an object, as templates need them."""
    if not value:
        # Servers write a call without arguments in several ways.
        return {}
    if not isinstance(value, str) or is_too_deep(value.encode(errors="replace"), _MAX_DEPTH):
        return value
    try:
        return json.loads(value)
    except ValueError:
        # Arguments that are no JSON object, perhaps written by a model, reach the template
        # unchanged.
        return value
