#!/usr/bin/env bash
# OpenAI's API with curl: models, a chat, the same as a stream, an answer held to a JSON Schema.
set -euo pipefail

ask() {
    curl -sS --fail-with-body -N "http://127.0.0.1:8000$1" -H 'content-type: application/json' \
        -H "authorization: Bearer ${BATON_API_KEY:-none}" "${@:2}"
    echo
}

ask /v1/models

ask /v1/chat/completions -d '{
    "model": "pydoc", "max_tokens": 64,
    "messages": [{"role": "user", "content": "What does os.path.join do?"}]}'

ask /v1/chat/completions -d '{
    "model": "pydoc", "max_tokens": 16, "stream": true,
    "messages": [{"role": "user", "content": "What is a generator?"}]}'

ask /v1/chat/completions -d '{
    "model": "pydoc", "max_tokens": 400, "temperature": 0,
    "messages": [{"role": "user", "content": "Is it good?"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "verdict", "schema": {
        "type": "object", "required": ["good"], "additionalProperties": false,
        "properties": {"good": {"type": "boolean"}}}}}}'
