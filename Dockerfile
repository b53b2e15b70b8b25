# Two images: `router` (no torch) and `worker` (prefill and decode).
#
#   docker build --target router -t baton-router .
#   docker build --target worker -t baton-worker .                                    # CPU
#   docker build --target worker -t baton-worker:cuda \
#       --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cu128 .          # CUDA 12.8
#
# Wheels of your own (a mirror, a torch that you built): --build-context wheels=DIR
ARG PYTHON_IMAGE=python:3.11-slim

# Empty unless a build context called `wheels` takes its place.
FROM scratch AS wheels

FROM ${PYTHON_IMAGE} AS python
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# Dependencies change less often than code: they come first, in layers of their own.
FROM python AS router-dependencies
WORKDIR /build
RUN python -m venv /opt/venv
COPY pyproject.toml scripts/dependencies.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    python dependencies.py - router > requirements.txt \
    && /opt/venv/bin/pip install --find-links /wheels -r requirements.txt \
    && rm -rf /opt/venv/lib/python*/site-packages/pip*

FROM python AS worker-dependencies
ARG TORCH=torch==2.13.0
# An index that cannot be reached is passed over: PyPI has a build with CUDA.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG EXTRAS=worker
WORKDIR /build
RUN python -m venv /opt/venv
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    /opt/venv/bin/pip install --retries 0 --timeout 15 --index-url "${TORCH_INDEX_URL}" "${TORCH}" \
    || /opt/venv/bin/pip install --find-links /wheels "${TORCH}"
COPY pyproject.toml scripts/dependencies.py ./
# xgrammar asks for Triton, a gigabyte that only CUDA uses: a torch for CUDA has brought it, one for CPUs does without.
# So its other needs, as far as nobody else asks for them, are named here.
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=bind,from=wheels,target=/wheels \
    python dependencies.py - ${EXTRAS} > all.txt \
    && grep -v '^xgrammar' all.txt > requirements.txt \
    && grep '^xgrammar' all.txt > xgrammar.txt \
    && /opt/venv/bin/pip install --find-links /wheels -r requirements.txt apache-tvm-ffi transformers \
    && /opt/venv/bin/pip install --find-links /wheels --no-deps -r xgrammar.txt \
    && /opt/venv/bin/python -c 'import xgrammar' \
    && rm -rf /opt/venv/lib/python*/site-packages/pip*

FROM python AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Baton" \
      org.opencontainers.image.description="Serves large language models, prefill and decode on separate workers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Sockets that workers of one host share lie in /run/baton; compiled kernels in /var/cache/baton. What jobs make for each role they
# write to volumes below /provided and /certs; Redis and Grafana run as users of their own, and read theirs.
RUN groupadd --gid 10001 baton \
    && useradd --uid 10001 --gid baton --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin baton \
    && install -d -o baton -g baton -m 0700 /run/baton /var/cache/baton /secrets /certs /authority \
    && install -d -o baton -g baton -m 0700 /provided/router /provided/worker /certs/router /certs/prefill /certs/decode /certs/operator \
    && install -d -o baton -g baton -m 0755 /provided /provided/redis /provided/grafana \
    && install -d -o baton -g baton -m 0755 /models
ENV BATON_VENV=/opt/venv \
    BATON_LOG_FORMAT=json \
    HOME=/tmp \
    PATH=/opt/baton:$PATH
WORKDIR /opt/baton
ENTRYPOINT ["/opt/baton/baton"]

FROM base AS router
LABEL org.opencontainers.image.title="Baton router"
COPY --from=router-dependencies /opt/venv /opt/venv
COPY baton ./
COPY proto proto
COPY client client
COPY shared shared
COPY services/__init__.py services/
COPY services/router services/router
COPY cli cli
USER 10001:10001
EXPOSE 8000 50051
# A router is healthy once a worker is, and a worker once its model is loaded: that may take minutes, and ends at the first success.
HEALTHCHECK --interval=5s --timeout=15s --start-period=600s --retries=5 CMD ["/opt/venv/bin/python", "-I", "-S", "/opt/baton/cli/healthcheck.py", "router"]
CMD ["serve", "router"]

FROM base AS worker
LABEL org.opencontainers.image.title="Baton worker"
# The CPU's kernels are compiled for the CPU that they run on, at the first start.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update && apt-get install -y --no-install-recommends g++
COPY --from=worker-dependencies /opt/venv /opt/venv
COPY baton ./
COPY proto proto
COPY client client
COPY kernels kernels
COPY shared shared
COPY services services
COPY cli cli
COPY models models
ENV BATON_CACHE_DIR=/var/cache/baton
USER 10001:10001
EXPOSE 50061 50062 9400
HEALTHCHECK --interval=5s --timeout=15s --start-period=600s --retries=5 CMD ["/opt/venv/bin/python", "-I", "-S", "/opt/baton/cli/healthcheck.py", "worker"]
CMD ["serve", "decode"]
