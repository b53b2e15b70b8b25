"""The version of the contract in proto/ that this process supports."""

from __future__ import annotations

#: Peers with another major version refuse each other.
PROTOCOL_MAJOR = 1
#: Raised by additions that a peer must know before it uses them:
#: 1: a prefill worker reports that it is still working.
#: 2: a worker follows grammars and passes `extra_args` to its logits processors. Workers of a lower
#: version may do so, or ignore them without an error: they are sent neither.
#: 3: a prefill worker sends hidden states on request.
#: 4: layouts have groups of layers, and tickets give the number of blocks of each. Workers of a
#: lower version refuse a layout of more than one group by its version.
#: 5: a worker returns the log probabilities of named tokens, and ends reasoning after a number of
#: tokens.
#: 6: prompts may give embeddings in place of tokens, and a worker returns log probabilities of
#: other modes than raw ones.
#: 7: (hidden states) a worker returns the hidden states behind an answer's tokens.
#: 7: (adapters) a worker loads adapters, and computes with the one that a request names.
#: 7: (vectors) a prefill worker makes vectors of texts, and describes them.
#: 8: (adapters) a worker tells how many adapters its memory takes.
#: 8: (vectors) a prefill worker makes vectors with the adapter that a request names.
#: 8: (ranks) a worker may consist of several ranks, with a part of each block in each of them.
#: 8: (roles) a worker tells which services it has and which role it prefers, and an order changes
#: the preference.
#: 8: (splits) a decode worker has the beginning of a prompt computed elsewhere, and computes the
#: rest.
#: 8: (landing) a worker tells how many blocks it receives in host memory while its pool is full.
#: 8: (plain tokens) a decode worker sends the tokens of a step in two lists, to a router that reads
#: them.
#: 9: workers hand over whose block sizes differ, if one is a multiple of the other.
#: 10: a pause may have a lease, which its router renews.
PROTOCOL_MINOR = 10

#: First minor versions with a feature.
REPORTING_MINOR = 1
CONSTRAINTS_MINOR = 2
STATES_MINOR = 3
FIELDS_MINOR = 5
EMBEDS_MINOR = 6
LOGPROBS_MODE_MINOR = 6
HIDDEN_STATES_MINOR = 7
ADAPTERS_MINOR = 7
POOLING_MINOR = 7
ADAPTED_VECTORS_MINOR = 8
RANKS_MINOR = 8
SPLIT_MINOR = 8
BLOCK_SIZES_MINOR = 9
