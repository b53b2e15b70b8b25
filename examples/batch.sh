#!/usr/bin/env bash
# Answers every line of batch.jsonl into answers.jsonl. Run it again: what is there stays.
set -euo pipefail

./baton run-batch --url http://127.0.0.1:8000 -i examples/batch.jsonl -o answers.jsonl
cat answers.jsonl
