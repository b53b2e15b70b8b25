"""Random JSON Schemas of everything that is supported, the same ones for a seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]

PATTERNS = (
    r"[a-z]{1,6}",
    r"(red|green|blue)-\d{2}",
    r"^[A-Z][a-z]*$",
    r"\d{4}/\d{2}",
    r"[^a-z]{2,4}",
)
FORMATS = ("date", "date-time", "time", "email", "ipv4", "uuid", "hostname", "ipv6", "duration")
CONSTANTS = ("x", 'Ж\n"q"', 0, -7, 2.5, True, None, [1, "a"], {"k": [None]})
_MAX_DEPTH = 4


def generate_schema(seed: int) -> Schema:
    """The schema of this number; an object, as APIs usually want one, or now and then another."""
    rng = random.Random(f"schema-{seed}")
    maker = _Maker(rng)
    if rng.random() < 0.85:
        schema = maker.object(0)
    else:
        schema = rng.choice((maker.array, maker.any_of, maker.string, maker.number))(0)
    if maker.definitions:
        schema["$defs"] = maker.definitions
    return schema


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.definitions: dict[str, Schema] = {}
        #: Being made: what referred to them now might never end.
        self._open: set[str] = set()

    def any(self, depth: int) -> Schema:
        """A schema of any kind; nothing that nests where it is deep."""
        simple: list[Callable[[int], Schema]] = [
            self.string, self.string, self.integer, self.number, self.listed, self.simple,
        ]  # fmt: skip
        nesting = [self.object, self.array, self.tuple, self.any_of, self.one_of, self.reference]
        if depth < _MAX_DEPTH and self._rng.random() < 0.5:
            return self._rng.choice(nesting)(depth + 1)
        return self._rng.choice(simple)(depth)

    def object(self, depth: int) -> Schema:
        """Some properties required, some not; now and then open to others."""
        rng = self._rng
        names = rng.sample(("id", "name", "a b", 'q"', "Ünï", "list", "x", "long_name_here"), k=4)
        names = names[: rng.randint(1, 4 if depth < 2 else 2)]
        schema: Schema = {
            "type": "object",
            "properties": {name: self.any(depth) for name in names},
            "required": [name for name in names if rng.random() < 0.6],
        }
        if rng.random() < 0.5:
            schema["additionalProperties"] = False
        return schema

    def array(self, depth: int) -> Schema:
        """Return a schema of arrays with one kind of items."""
        low = self._rng.randint(0, 2)
        schema: Schema = {"type": "array", "items": self.any(depth + 1)}
        if low:
            schema["minItems"] = low
        schema["maxItems"] = low + self._rng.randint(0, 2)
        return schema

    def tuple(self, depth: int) -> Schema:
        """Each item of a kind of its own."""
        items = [self.any(depth + 1) for _ in range(self._rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def any_of(self, depth: int) -> Schema:
        """One of several schemas."""
        return {"anyOf": [self.any(depth + 1) for _ in range(self._rng.randint(2, 3))]}

    def one_of(self, depth: int) -> Schema:
        """Objects that a constant tells apart."""
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": self.any(depth + 1)},
                    "required": ["kind", "value"],
                }
                for kind in ("circle", "square")
            ]
        }

    def reference(self, depth: int) -> Schema:
        """To a definition, which may refer to itself."""
        name = f"d{self._rng.randrange(2)}"
        if name in self._open:
            return {"type": "null"}
        if name not in self.definitions:
            self._open.add(name)
            if self._rng.random() < 0.5:
                self.definitions[name] = self.any(depth + 1)
            else:
                self.definitions[name] = {
                    "type": "object",
                    "properties": {
                        "value": self.integer(depth),
                        "next": {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]},
                    },
                    "required": ["value"],
                }
            self._open.discard(name)
        return {"$ref": f"#/$defs/{name}"}

    def string(self, depth: int) -> Schema:
        """Free, of a length, of a pattern or of a format."""
        rng = self._rng
        low = rng.randint(0, 3)
        return {
            "type": "string",
            **rng.choice(
                (
                    {"maxLength": low + 4, "minLength": low},
                    {"maxLength": 6},
                    {"pattern": rng.choice(PATTERNS)},
                    {"format": rng.choice(FORMATS)},
                    {},
                )
            ),
        }

    def integer(self, depth: int) -> Schema:
        """With bounds of any sign, or with none."""
        return {"type": "integer", **self._range(self._rng.randint(-1200, 900))}

    def number(self, depth: int) -> Schema:
        """With bounds that may have decimals."""
        return {"type": "number", **self._range(round(self._rng.uniform(-50, 50), 1))}

    def _range(self, low: float) -> Schema:
        width = self._rng.choice((1, 7, 99, 1024))
        return self._rng.choice(
            (
                {"minimum": low, "maximum": low + width},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + width + 1},
                {"minimum": low},
                {"maximum": low},
                {},
            )
        )

    def listed(self, depth: int) -> Schema:
        """An enumeration or a constant."""
        values = self._rng.sample(CONSTANTS, k=self._rng.randint(1, 4))
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def simple(self, depth: int) -> Schema:
        """Truth, nothing, or one of several types."""
        return {
            "type": self._rng.choice(("boolean", "null", ["boolean", "null"], ["string", "null"]))
        }
