#!/usr/bin/env bash
# Add what only some tests need: scripts/setup_tests.sh DIR, after scripts/setup.sh DIR. What cannot
# be had is named here, and its tests skip with the reason.
set -euo pipefail

venv=${1:?usage: scripts/setup_tests.sh DIR}
root=$(cd "$(dirname "$0")/.." && pwd)

# shellcheck source=scripts/install.sh
. "$root/scripts/install.sh"

say() { printf '\033[1m%s\033[0m\n' "$*"; }
lacking() { printf 'setup: no %s; its tests are skipped\n' "$*" >&2; }
needs() { "$venv/bin/python" "$root/scripts/dependencies.py" --pyproject "$root/pyproject.toml" "$@"; }

say "Adding what some tests need: UCX, helm, other people's clients"
for extra in nixl clients; do
    needs "$extra" >"$venv/requirements-$extra.txt"
    install_packages "$venv" -r "$venv/requirements-$extra.txt" || lacking "$extra"
done
# LiteLLM pins older versions of what Baton needs, so it gets an environment of its own.
[ -x "$venv/litellm/bin/python" ] || "$venv/bin/python" -m venv --without-pip "$venv/litellm"
needs litellm >"$venv/requirements-litellm.txt"
installers=$venv install_packages "$venv/litellm" -r "$venv/requirements-litellm.txt" || lacking LiteLLM
command -v helm >/dev/null || "$venv/bin/python" "$root/scripts/get_helm.py" || lacking helm
touch "$venv/.ready-test"
