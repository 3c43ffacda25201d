"""The settings that most people change, by task, each with an example. The reference page begins with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One thing that an operator wants, and the part of a configuration file that does it."""

    title: str
    text: str
    """One or two sentences."""
    yaml: str
    """An example that is valid by itself."""


TASKS = (
    Task(
        "Listen beyond this machine",
        "Without these keys only this machine reaches the server. `tls` is for a server without a proxy.",
        """\
server:
  host: 0.0.0.0
  port: 8080
  public_url: https://voice.example.com   # the address that carriers call and sign
  trusted_proxies: [10.0.0.5]             # the proxy that serves TLS
  # tls: {certificate: chain.pem, key: key.pem}
auth:
  api_keys:
    - key: ${TALKSPURT_API_KEY}
""",
    ),
    Task(
        "Keys for the API",
        "`talkspurt keys create` writes a file of keys; single keys may stand here. More: [tenants.md](tenants.md).",
        """\
auth:
  keys_file: keys.json
  api_keys:
    - key: ${MONITORING_KEY}
      scopes: [read]
""",
    ),
    Task(
        "Connect your application",
        "The gateway dials one WebSocket per call. Without `url`, applications dial in to `/v1/dialogue`. "
        "More: [protocol.md](protocol.md).",
        """\
routes:
  default:
    dialogue:
      url: wss://bot.example.com/relay
      headers: {Authorization: "Bearer ${BOT_TOKEN}"}
      extensions: true                    # messages beyond ConversationRelay
      give_up_s: 30                       # longest wait for a lost application
    fallback: {text: One moment please., transfer: "+15550199"}
""",
    ),
    Task(
        "Voice, language and greeting",
        "Each route has its own.",
        """\
routes:
  default:
    voice: heart
    language: en-US
    welcome_greeting: Hello, how can I help you?
    interruptible: speech                 # any, speech, dtmf, none
    lexicon: {nginx: engine x}
""",
    ),
    Task(
        "Understand callers",
        "`auto` uses the built-in English recogniser if the extra `[recogniser]` is installed. Other languages need an "
        "external one. More: [recogniser.md](recogniser.md).",
        """\
routes:
  default:
    recogniser: external
    language: de-DE
recogniser:
  url: wss://api.deepgram.com/v1/listen
  headers: {Authorization: "Token ${DEEPGRAM_API_KEY}"}
  end_of_speech_ms: 600                   # silence that ends an utterance
""",
    ),
    Task(
        "Interruptions",
        "Lower values interrupt sooner, and more often by mistake.",
        """\
barge_in:
  threshold: 0.4                          # speech probability
  min_speech_ms: 96
  max_wait_ms: 4000                       # longest wait of a turn for a caller who speaks
""",
    ),
    Task(
        "Connect Twilio",
        "The webhook is `/webhooks/twilio`. Other carriers have a section with their own secrets. More: "
        "[twilio-in-10-minutes.md](twilio-in-10-minutes.md).",
        """\
server:
  public_url: https://voice.example.com
  trusted_proxies: [127.0.0.1]
auth:
  api_keys: [{key: "${TALKSPURT_API_KEY}"}]
carriers:
  twilio:
    auth_token: ${TWILIO_AUTH_TOKEN}
""",
    ),
    Task(
        "A SIP trunk",
        "The peer is known by its address, a password or our registration. More: [sip.md](sip.md).",
        """\
sip:
  host: 0.0.0.0
  public_address: 192.0.2.9
  rtp_ports: 16384-18383                  # two ports for each call
  trunks:
    pbx:
      addresses: [192.0.2.16/28]
      proxy: sip:pbx.example.com          # for our calls
      numbers: {"2000": default}
    carrier: {}
  registrations:
    - registrar: sip:registrar.example.com
      username: "4930123456"
      password: ${CARRIER_PASSWORD}
      trunk: carrier
""",
    ),
    Task(
        "Asterisk",
        "More: [asterisk-in-10-minutes.md](asterisk-in-10-minutes.md).",
        """\
audiosocket:
  host: 10.0.0.5
  allowed: [10.0.0.0/24]
  route: default
""",
    ),
    Task(
        "FreeSWITCH",
        "More: [freeswitch-in-10-minutes.md](freeswitch-in-10-minutes.md).",
        """\
carriers:
  freeswitch:
    token: ${STREAM_TOKEN}
    esl: {host: 10.0.0.6, password: "${ESL_PASSWORD}"}
""",
    ),
    Task(
        "Calls from browsers",
        "Callers behind strict networks need a TURN server. More: [browser.md](browser.md).",
        """\
webrtc:
  public_address: 192.0.2.9
  ports: 40000-49999
  allowed_origins: [https://www.example.com]
  ice_servers:
    - urls: ["turn:turn.example.com:3478?transport=udp"]
      secret: ${TURN_SECRET}
""",
    ),
    Task(
        "Transfer and place calls",
        "Nothing may be called by default. More: [calls.md](calls.md).",
        """\
calling:
  allowed_targets: ["+4930*", "*@pbx.example.com"]
  denied_targets: ["+88*"]
  caller_ids: ["+4930123456"]
""",
    ),
    Task(
        "A GPU voice",
        "Needs the extra `[cosyvoice]`. The folder decides which version it is. More: [models.md](models.md).",
        """\
engine:
  kind: cosyvoice3
  model_folder: models/cosyvoice3
  devices: [cuda:0, cuda:1]
  cosyvoice: {cache_gb: 64, max_clauses: 200}
""",
    ),
    Task(
        "A quantised language model",
        "vLLM quantises the language model. All its engine arguments stand under `vllm`.",
        """\
engine:
  kind: cosyvoice3
  model_folder: models/cosyvoice3
  cosyvoice:
    language_model: vllm
    vllm: {quantization: fp8}
""",
    ),
    Task(
        "Engines on other machines",
        "More: [cluster.md](cluster.md).",
        """\
engine:
  targets: [gpu1.example.com:50051, gpu2.example.com:50051]
  tls: {ca: ca.pem}
  token: ${ENGINE_TOKEN}
""",
    ),
    Task(
        "Recording",
        "Tell callers where the law asks for it. More: [recording.md](recording.md).",
        """\
recording:
  folder: recordings
  keep_days: 30
  encrypt: ${RECORDING_KEY}               # openssl rand -hex 32
routes:
  default: {recording: true}
""",
    ),
    Task(
        "Call log and billing records",
        "More: [billing.md](billing.md).",
        """\
calls: {folder: calls, keep_days: 30}
records:
  database_url: sqlite:///records.sqlite3
  webhook_url: https://billing.example.com/calls
  webhook_secret: ${WEBHOOK_SECRET}       # echo whsec_$(openssl rand -base64 32)
""",
    ),
    Task(
        "More calls, and an end to them",
        "A restart waits for live calls. More: [scaling.md](scaling.md), [sizing.md](sizing.md).",
        """\
server: {workers: 4, drain_s: 120}
limits: {calls: 300, tick_lateness_ms: 20}
""",
    ),
    Task(
        "Several gateways",
        "They share tokens, limits and records. More: [scaling.md](scaling.md).",
        """\
server: {stream_token_secret: "${STREAM_TOKEN_SECRET}"}
directory: {redis_url: "${REDIS_URL}", address: "http://10.0.0.5:8080"}
limits: {redis_url: "${REDIS_URL}"}
calls: {folder: calls}
postgres: {url: "${DATABASE_URL}"}
""",
    ),
    Task(
        "Logs and traces",
        "Metrics are at `/metrics` ([metrics.md](metrics.md)).",
        """\
log: {level: info, json_lines: true}
tracing: {endpoint: "http://127.0.0.1:4318/v1/traces"}
""",
    ),
)
