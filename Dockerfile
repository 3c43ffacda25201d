# talkspurt on the CPU with the embedded voice.
#
#   docker build --target cpu -t talkspurt .
#   docker run --rm -p 127.0.0.1:8080:8080 -e TALKSPURT__SERVER__INSECURE=true talkspurt
#
# Inside a container the listener has to leave loopback. `INSECURE` opens the console, /v1 and /metrics without a key
# and takes unsigned calls: for a port published on 127.0.0.1 only. For a real carrier mount a configuration and pass
# its secrets: `-v ./my.yaml:/app/configs/my.yaml:ro --env-file .env … talkspurt serve -c configs/my.yaml`.

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
# pip of the base image installs into the new environment, which so needs none of its own.
RUN python -m venv --without-pip /opt/talkspurt
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > requirements.txt \
    && pip --python /opt/talkspurt/bin/python install --no-cache-dir -r requirements.txt
COPY README.md LICENSE NOTICE ./
COPY codecs codecs
COPY gateway gateway
COPY tts_engine tts_engine
COPY sip_bridge sip_bridge
COPY talkspurt talkspurt
RUN pip --python /opt/talkspurt/bin/python install --no-cache-dir --no-deps .

FROM python:3.12-slim-bookworm AS cpu
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin talkspurt
COPY --from=build /opt/talkspurt /opt/talkspurt
COPY configs /app/configs
ENV PATH=/opt/talkspurt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TALKSPURT__SERVER__HOST=0.0.0.0 \
    TALKSPURT__SERVER__PORT=8080
WORKDIR /app
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 CMD ["python", "-c", \
    "import os, urllib.request as u; u.urlopen('http://127.0.0.1:%s/healthz' % os.environ['TALKSPURT__SERVER__PORT'], timeout=2)"]
ENTRYPOINT ["talkspurt"]
CMD ["serve", "-c", "configs/demo.yaml"]
