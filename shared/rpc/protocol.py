"""The version of the contract in proto/ that this process speaks."""

from __future__ import annotations

#: Peers of another one refuse each other.
PROTOCOL_MAJOR = 1
#: Raised by additions that a peer must know of before it uses them:
#: 1: a prefill worker says that it is at it.
#: 2: a worker follows grammars and hands `extra_args` to its logits processors. Workers of a lower
#: version may do so, or pass them over without a word: they are sent neither.
#: 3: a prefill worker sends hidden states if it is asked to.
#: 4: layouts have groups of layers, and tickets say how many blocks are whose. Workers of a lower
#: version refuse a layout of more than one group by its version.
PROTOCOL_MINOR = 4

#: From these minor versions on.
REPORTING_MINOR = 1
CONSTRAINTS_MINOR = 2
STATES_MINOR = 3
