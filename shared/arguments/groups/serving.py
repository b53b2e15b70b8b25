"""Flags of `vllm serve` about the server in front of its engine."""

from __future__ import annotations

from shared.arguments.base import (
    Inert,
    Refused,
    Same,
    Spelled,
    json_object,
    renamed,
    switch,
    value,
    words,
)
from shared.arguments.values import either, lora_modules, word_list

_CERT_REQS = {"0": "none", "1": "optional", "2": "required"}
_LOGS = "requests are logged with --log-requests alone, by all services"
_ALWAYS = "it is always there"
_FINGERPRINT = "system_fingerprint is Baton's version"
_COHERE = "Baton does not have Cohere's API"
_SUPERVISOR = "the router watches its workers itself"

SERVING = (
    words(
        "--lora-modules",
        None,
        Spelled(
            "--lora-modules",
            lora_modules,
            "name=path, or JSON objects; more may be loaded while it serves, below `--lora-dir`",
        ),
    ),
    value(
        "--chat-template",
        None,
        Same("a file, or the template itself; `auto` parsers are those that it shows"),
    ),
    value(
        "--chat-template-content-format",
        "auto",
        Refused("templates are given texts", harmless=("string",)),
    ),
    switch("--trust-request-mm-kwargs", Refused("Baton takes text and token ids only")),
    json_object("--default-chat-template-kwargs", Same()),
    value("--response-role", "assistant", Same()),
    switch("--return-tokens-as-token-ids", Same("of chats and completions")),
    switch("--enable-auto-tool-choice", Inert("--tool-call-parser is enough")),
    switch(
        "--exclude-tools-when-tool-choice-none",
        Inert("tools are always left out of the prompt then"),
    ),
    value("--tool-parser-plugin", "", Refused("--tool-call-parser names one of Baton's")),
    value("--tool-strict-level", "auto", Refused("only a call that is required has to fit")),
    value("--tool-server", None, Refused("tools are the client's to call")),
    value("--max-log-len", None, Inert("prompts are not logged")),
    switch("--enable-prompt-tokens-details", Inert("usage always has them")),
    switch("--enable-per-request-metrics", Inert("answers have their timings")),
    switch("--enable-server-load-tracking", Inert("/load always counts")),
    switch("--enable-force-include-usage", Same("of streams; other answers always have it")),
    value("--sse-keep-alive-interval", "0", Refused("streams say nothing between tokens")),
    switch("--enable-tokenizer-info-endpoint", Inert(_ALWAYS)),
    switch("--enable-scale-out", Inert("its endpoints are always there")),
    switch("--enable-log-outputs", Refused("answers are not logged")),
    switch("--enable-log-deltas", Inert("answers are not logged"), default=True),
    switch("--log-error-stack", Inert("errors inside are logged with their stack")),
    value("--fingerprint-mode", "full", Inert(_FINGERPRINT)),
    value("--fingerprint-value", None, Inert(_FINGERPRINT)),
    switch("--cohere-is-reasoning-model", Inert(_COHERE), default=True),
    value("--cohere-format", "cmd4", Inert(_COHERE)),
    value(
        "--anthropic-disabled-thinking-effort",
        "auto",
        Refused("a request says output_config.effort"),
    ),
    value("--data-parallel-supervisor-port", "9256", Inert(_SUPERVISOR)),
    value("--dp-supervisor-probe-interval-s", "5.0", Inert(_SUPERVISOR)),
    value("--dp-supervisor-probe-timeout-s", "5.0", Inert(_SUPERVISOR)),
    value("--dp-supervisor-probe-failure-threshold", "3", Inert(_SUPERVISOR)),
    value("--uds", None, Refused("the router listens on --host and --port")),
    value("--uvicorn-log-level", "info", Inert("see --log-level")),
    switch("--disable-uvicorn-access-log", Inert(_LOGS)),
    value("--disable-access-log-for-endpoints", None, Inert(_LOGS)),
    words(
        "--api-key",
        None,
        Spelled(
            "--client-keys",
            word_list("--client-keys"),
            "or VLLM_API_KEY; all paths but the probes need one, and operators' stay closed: see "
            "docs/security.md",
        ),
    ),
    value("--ssl-keyfile", None, renamed("--https-key")),
    value("--ssl-certfile", None, renamed("--https-cert", "of the HTTP port alone")),
    value("--ssl-ca-certs", None, renamed("--https-ca")),
    switch("--enable-ssl-refresh", Inert("certificates are read again when they change")),
    value(
        "--ssl-cert-reqs",
        "0",
        Spelled("--https-client-certs", either("--https-client-certs", _CERT_REQS)),
    ),
    value("--ssl-ciphers", None, Refused("they are those of the TLS library")),
    value("--root-path", None, Refused("a proxy in front takes the path away")),
    words("--middleware", None, Refused("the router loads no code")),
    switch("--enable-request-id-headers", Inert("every answer has x-request-id")),
    switch("--disable-fastapi-docs", Same()),
    switch("--enable-offline-docs", Refused("/docs is read with a network; see /openapi.json")),
    switch("--enable-flash-late-interaction", Inert("Baton does not score"), default=True),
)
