#!/usr/bin/env bash
# Make the virtual environment: scripts/setup.sh DIR. Safe to run again: it goes on where it
# stopped, and installs nothing that is there already.
#
#   PYTHON   interpreter to use; by default the first of python3, python3.13 … 3.11 that is new enough
#   TORCH    what to install torch as; by default the version that the tests run with
#   EXTRAS   groups of pyproject.toml; by default all of them
set -euo pipefail

venv=${1:?usage: scripts/setup.sh DIR}
root=$(cd "$(dirname "$0")/.." && pwd)
torch=${TORCH:-torch==2.13.0}
extras=${EXTRAS:-- router worker dev}

# shellcheck source=scripts/install.sh
. "$root/scripts/install.sh"

say() { printf '\033[1m%s\033[0m\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "needs Python 3.11 or newer${PYTHON:+, which $PYTHON is not}; name one with PYTHON=/path/to/python3"
}

make_venv() {
    local python
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"
    say "Making $venv with $("$python" --version)"
    "$python" -m venv "$venv" || die "cannot make $venv"
}

pip_install() {
    install_packages "$venv" "$@" ||
        die "could not install: $*. Is there a network? Run the same command again to go on."
}

# Without a CUDA device the CPU build saves gigabytes, where that index can be reached.
install_torch() {
    "$venv/bin/python" -c 'import torch' 2>/dev/null && return
    say "Installing $torch (the largest part)"
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        "$venv/bin/python" -m pip install --disable-pip-version-check --retries 0 --timeout 10 \
            --no-compile --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null && return
    fi
    # By pip: it may know of wheels that uv does not look for, such as one on this disk.
    "$venv/bin/python" -m pip install --disable-pip-version-check --retries 5 --no-compile "$torch" ||
        pip_install "$torch"
}

[ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" || make_venv
case " $extras " in *" worker "* | *" dev "*) install_torch ;; esac

# shellcheck disable=SC2086 # the groups are words
needs=$("$venv/bin/python" "$root/scripts/dependencies.py" --pyproject "$root/pyproject.toml" $extras)
say "Installing $(printf '%s\n' "$needs" | wc -l) packages and what they need"
printf '%s\n' "$needs" >"$venv/requirements.txt"
pip_install -r "$venv/requirements.txt"
touch "$venv/.ready"
say "Ready: $venv"
