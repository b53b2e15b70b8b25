"""Which linears of a decoder take adapters, by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Behind the layer's number: what each executor adds adapters to.
_TAKING = frozenset(
    (
        "attention.qkv",
        "attention.head_gate",
        "attention.output",
        "attention.q_down",
        "attention.q_up",
        "attention.kv_down",
        "attention.inputs",
        "attention.rates",
        "attention.out",
        "mlp.gate_up",
        "mlp.up",
        "mlp.down",
        "mlp.shared.gate_up",
        "mlp.shared.up",
        "mlp.shared.down",
        "input_gate.gate",
        "input_gate.up",
    )
)
#: By the beginning of the path in a layer: what others are.
_OTHERS: Mapping[str, str] = {
    "mlp.experts": "a matrix of experts",
    "mlp.router": "the router of experts",
    "mlp.shared_gate": "the gate of the expert that all tokens share",
    "mlp.latent": "a projection around experts",
    "attention.kv_up": "what makes keys and values of latent rows",
}
_LAYERS = "layers"


def takes_adapter(path: str) -> bool:
    """Return whether the linear at this path in the model takes adapters."""
    return _in_layer(path) in _TAKING


def why_not(path: str) -> str:
    """Return what a module is, for a refusal, that does not take adapters."""
    own = _in_layer(path)
    for begin, what in _OTHERS.items():
        if own.startswith(begin):
            return what
    return "no linear of a layer"


def _in_layer(path: str) -> str:
    """The path in its layer; empty: it is in none."""
    first, _, rest = path.partition(".")
    return rest.partition(".")[2] if first == _LAYERS else ""
