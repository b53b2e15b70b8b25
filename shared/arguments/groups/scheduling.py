"""vLLM's group SchedulerConfig."""

from __future__ import annotations

from shared.arguments.base import Inert, Refused, Same, renamed, switch, value

SCHEDULING = (
    value("--max-num-batched-tokens", None, Same()),
    value("--max-num-scheduled-tokens", None, renamed("--max-num-batched-tokens")),
    value("--max-num-seqs", None, Same()),
    value("--max-num-active-seqs", None, renamed("--max-num-seqs")),
    value("--max-num-queued-reqs", None, renamed("--max-queued-requests")),
    value("--max-num-queued-tokens", None, renamed("--max-queued-tokens")),
    value("--max-num-partial-prefills", "1", Inert("every prompt may have a part in a step")),
    value("--max-long-partial-prefills", "1", Inert("every prompt may have a part in a step")),
    value("--long-prefill-token-threshold", "0", Same("only while others wait")),
    switch("--long-prefill-token-threshold-adaptive", Inert("it is, while others wait")),
    value("--scheduling-policy", "fcfs", Same("urgency is one more, and the workers' default")),
    switch("--enable-chunked-prefill", Same(), default=None),
    switch("--disable-chunked-mm-input", Inert("a prompt has no images")),
    value("--scheduler-cls", None, Refused("the scheduler is Baton's own")),
    switch(
        "--scheduler-reserve-full-isl",
        Inert("a prompt starts when its blocks fit, and growth preempts"),
        default=True,
    ),
    value("--watermark", "0.0", Inert("a prompt starts when its blocks fit")),
    value("--prefill-schedule-interval", "1", Inert("prompts may start in every step")),
    switch(
        "--disable-hybrid-kv-cache-manager",
        Refused("each kind of layer keeps what it needs"),
        default=None,
    ),
    switch("--async-scheduling", Same(), default=None),
    value("--stream-interval", "1", Same()),
)
