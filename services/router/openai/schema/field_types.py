"""Types of fields that several bodies use."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from shared.generation.limits import MAX_TEMPERATURE
from shared.request.extra_args import MAX_ARGS

INT32_MAX = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
#: -1: all tokens. The router's limit is checked later.
NumLogprobs = Annotated[int, Field(ge=-1, le=INT32_MAX)]
NumTokens = Annotated[int, Field(ge=0, le=INT32_MAX)]
#: Signed or unsigned: equal 64 bits are the same seed.
Seed = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
NonEmpty = Annotated[str, Field(min_length=1)]
_SCALAR = {"type": ["string", "number", "boolean"]}
#: Checked by shared/request/extra_args.py, which has better error messages.
ExtraArgs = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": ["object", "null"],
            "maxProperties": MAX_ARGS,
            "additionalProperties": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]},
        }
    ),
]
