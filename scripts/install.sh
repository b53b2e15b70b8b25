# To be sourced. Installs into a virtual environment with uv, which takes seconds where pip takes
# minutes; with pip where uv cannot be had, or fails.

# What pip is told of indexes and certificates, as uv's flags and variables.
_uv_flags() {
    local python=$1 index links
    index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url --disable-pip-version-check 2>/dev/null || true)}
    [ -z "$index" ] || printf '%s\n' --index-url "$index"
    for links in ${PIP_FIND_LINKS:-}; do
        [ ! -e "$links" ] || printf '%s\n' --find-links "$links"
    done
}

# install_packages ENVIRONMENT ARGUMENT… with the installers of `installers`, another environment, or
# of its own.
install_packages() {
    local python=$1/bin/python own=${installers:-$1}/bin/python attempt flags
    shift
    "$own" -c 'import uv' 2>/dev/null ||
        "$own" -m pip install --disable-pip-version-check -q uv 2>/dev/null || true
    if "$own" -c 'import uv' 2>/dev/null; then
        mapfile -t flags < <(_uv_flags "$own")
        [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
        "$own" -m uv pip install --python "$python" ${flags[@]+"${flags[@]}"} "$@" && return
    fi
    # A download that breaks off is tried again; pip keeps what it has.
    for attempt in 1 2 3; do
        "$own" -m pip --python "$python" install --disable-pip-version-check --retries 5 "$@" &&
            return
        [ "$attempt" = 3 ] || { echo "That failed; trying again"; sleep $((attempt * 3)); }
    done
    return 1
}
