"""Valid messages of each method that a router serves: what mutations start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.v1 import common_pb2, directory_pb2, router_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

WORKER = common_pb2.WorkerId(name="w", incarnation="1")
PARAMS = router_pb2.GenerationParams(max_tokens=2, temperature=0.5, stop=["x"], seed=1)
HASHES = [bytes([i]) * 32 for i in range(4)]
RECORD = directory_pb2.WorkerRecord(
    worker=WORKER,
    role=common_pb2.ROLE_DECODE,
    address="127.0.0.1:1",
    model="tiny",
    namespace="ab" * 32,
    block_size=16,
    num_blocks=8,
    max_model_len=64,
)
PUBLIC: tuple[tuple[str, Message], ...] = (
    (
        "Router/Generate",
        router_pb2.GenerateRequest(prompt=router_pb2.Prompt(text="a"), params=PARAMS),
    ),
    (
        "Router/Generate",
        router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(tokens=common_pb2.TokenIds(ids=[5, 6])), params=PARAMS
        ),
    ),
    (
        "Router/Chat",
        router_pb2.ChatRequest(
            messages=[router_pb2.ChatMessage(role="user", content="hi")], params=PARAMS
        ),
    ),
    (
        "Router/Chat",
        router_pb2.ChatRequest(
            messages=[
                router_pb2.ChatMessage(
                    role="assistant",
                    tool_calls=[router_pb2.ToolCall(id="c", name="f", arguments='{"a": 1}')],
                )
            ],
            params=router_pb2.GenerationParams(
                max_tokens=2,
                num_speculative_tokens=1,
                extra_args={"a": common_pb2.ExtraArg(integer=1)},
            ),
            read_answers=True,
            tools=[router_pb2.Tool(name="f", parameters='{"type": "object"}')],
            tool_choice=router_pb2.ToolChoice(mode=router_pb2.TOOL_MODE_REQUIRED),
            chat_template_kwargs={"a": "[1]"},
            documents=['{"a": 1}'],
        ),
    ),
    (
        "Router/Generate",
        router_pb2.GenerateRequest(
            prompt=router_pb2.Prompt(text="a"),
            params=router_pb2.GenerationParams(
                max_tokens=2,
                grammar=common_pb2.Grammar(
                    kind=common_pb2.GRAMMAR_KIND_CHOICE,
                    text='["a"]',
                    thinking=common_pb2.Thinking(begin_token_id=3, end_token_id=4, is_open=True),
                ),
            ),
        ),
    ),
    ("Router/ListModels", router_pb2.ListModelsRequest()),
    (
        "Router/LoadLoraAdapter",
        router_pb2.LoadLoraAdapterRequest(name="a", path="/a", load_inplace=True),
    ),
    ("Router/UnloadLoraAdapter", router_pb2.UnloadLoraAdapterRequest(name="a")),
)
DIRECTORY: tuple[tuple[str, Message], ...] = (
    ("Directory/Register", directory_pb2.RegisterRequest(record=RECORD, lease_s=0.05)),
    ("Directory/Heartbeat", directory_pb2.HeartbeatRequest(worker=WORKER)),
    ("Directory/Deregister", directory_pb2.DeregisterRequest(worker=WORKER)),
    ("Directory/Publish", directory_pb2.PublishRequest(worker=WORKER, sequence=1, stored=HASHES)),
    (
        "Directory/Publish",
        directory_pb2.PublishRequest(
            worker=WORKER,
            sequence=2,
            snapshot=True,
            stored=HASHES,
            other_tiers=[directory_pb2.TierBlocks(tier=directory_pb2.TIER_HOST, hashes=HASHES)],
        ),
    ),
    ("Directory/LookupBlocks", directory_pb2.LookupBlocksRequest(block_hashes=HASHES)),
    ("Directory/ListWorkers", directory_pb2.ListWorkersRequest()),
)
