"""The configuration file: what is read, and how every mistake is told, with its line."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from gateway.carriers.twilio.settings import TwilioConfig
from talkspurt.config.reference import json_schema, markdown
from talkspurt.config.settings import Config, effective_yaml, load
from talkspurt.config.yaml_file import ConfigError
from talkspurt.invocation import pip_install
from talkspurt.recognisers import deaf_routes

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(
    path
    for path in (ROOT / "configs").glob("*.yaml")
    if path.name not in ("demo-script.yaml", "cluster.yaml")  # the latter is Ray's
)  # the others there belong to Prometheus and Grafana
SECRETS = {
    name: f"value-of-{name.lower()}"
    for name in (
        "TWILIO_AUTH_TOKEN",
        "TWILIO_ACCOUNT_SID",
        "TALKSPURT_API_KEY",
        "STREAM_TOKEN_SECRET",
        "CARRIER_PASSWORD",
    )
} | {
    "PUBLIC_HOST": "voice.example.com",
    "DIALOGUE_URL": "wss://bot.example.com/relay",
    "SIP_ADDRESS": "192.0.2.9",
    "PBX_NETWORK": "192.0.2.0/28",
    "PBX_HOST": "pbx.example.com",
    "KOKORO_VOICES": "voices",
    "STREAM_TOKEN": "value-of-stream_token",
    "ESL_PASSWORD": "ClueCon",
}


def problems(tmp_path: Path, text: str | bytes, **environment: str) -> list[str]:
    """Return the errors of a file, each ``LINE: message`` (without the file's name)."""
    path = tmp_path / "my.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(path, environment=environment)
    return [str(problem).removeprefix(f"{path}:").strip() for problem in caught.value.problems]


def loaded(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return load(path, environment=environment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server:\n  prot: 1\n", "2: unknown key server.prot; did you mean port?"),
        ("srever:\n  port: 1\n", "1: unknown key srever; did you mean server?"),
        ("log:\n  qqqq: 1\n", "2: unknown key log.qqqq; known here: level, json_lines"),
        ("server:\n  tls:\n    certificat: a\n    certificate: a\n    key: b\n",
         "3: unknown key server.tls.certificat; did you mean certificate?"),
        ("server:\n\n  port: many\n", "3: server.port: expected a whole number; got 'many'"),
        ("server:\n  port: 5.5\n", "2: server.port: expected a whole number; got '5.5'"),
        ("server:\n  port: true\n", "2: server.port: expected a whole number; got 'true'"),
        ("server:\n  port: 70000\n", "2: server.port: expected at most 65535; got '70000'"),
        ("server:\n  drain_s: -1\n", "2: server.drain_s: expected at least 0; got '-1'"),
        ("server:\n  drain_s: [1]\n", "2: server.drain_s: expected a number; got a list"),
        ("server:\n  insecure: perhaps\n", "2: server.insecure: expected true or false; got 'perhaps'"),
        ("server:\n  host: {a: b}\n", "2: server.host: expected text; got a section"),
        ("server:\n  host: null\n", "2: server.host: expected text; got nothing"),
        ("playout:\n  ptime_ms: 25\n", "2: playout.ptime_ms: expected a multiple of 10; got '25'"),
        ("clips: here\n", "1: clips: expected a section (keys and values); got text"),
        ("routes:\n  a:\n    hints: hello\n", "3: routes.a.hints: expected a list; got text"),
        ("routes:\n  a:\n    events:\n      - debugging\n      - all\n",
         "5: routes.a.events.1: expected 'speaker-events', 'tokens-played', 'debugging', 'config-updated' "
         "or 'caller-changed'; "
         "got 'all'"),
        ("routes:\n  a:\n    interruptible: maybe\n",
         "3: routes.a.interruptible: expected 'any', 'speech', 'dtmf' or 'none', or true or false; got 'maybe'"),
        ("routes:\n  a b: {}\n",
         "2: routes.a b: expected a name of letters, digits, dot, dash and underscore; got 'a b'"),
        ("auth:\n  api_keys:\n    - tenant: shop\n", "3: auth.api_keys.0.key is missing"),
        ("carriers:\n  twilio:\n    auth_token: ''\n",
         "3: carriers.twilio.auth_token: expected a length of at least 1; got ''"),
        ("routes:\n  a:\n    dialogue:\n      url: http://x\n",
         "4: routes.a.dialogue.url: an address with the scheme 'http', expected wss:// or ws:// and a host"),
        ("server:\n  public_url: voice.example.com\n",
         "2: server.public_url: an address with no scheme, expected https:// or http:// and a host"),
        ("server:\n  public_url: wss://voice.example.com\n",
         "2: server.public_url: an address with the scheme 'wss', expected https:// or http:// and a host"),
        ("carriers:\n  plivo: {after_url: 'https:///after'}\n",
         "2: carriers.plivo.after_url: an address with the scheme 'https', expected https:// or http:// and a host"),
        ("carriers:\n  telnyx: {api_url: api.telnyx.com}\n",
         "2: carriers.telnyx.api_url: an address with no scheme, expected https:// or http:// and a host"),
        ("tracing: {endpoint: '127.0.0.1:4318'}\n",
         "1: tracing.endpoint: an address with no scheme, expected https:// or http:// and a host"),
        ("engine: {directory_url: gpu1}\n",
         "1: engine.directory_url: expected an address that begins with https:// or http://"),
        ("engine: {device: gpu}\n", "1: engine.device: expected cpu, cuda or cuda:1; got 'gpu'"),
        ("server: {trusted_proxies: [proxy.example.com]}\n",
         "1: server.trusted_proxies: expected addresses or networks, 10.0.0.7 or 10.0.0.0/24; "
         "'proxy.example.com' does not appear to be an IPv4 or IPv6 network"),
        ("webrtc: {allowed_origins: [app.example.com]}\n",
         "1: webrtc.allowed_origins.0: 'app.example.com' is no origin, expected https://app.example.com, or * for all"),
        ("server: {origins: ['https://app.example.com/page']}\n",
         "1: server.origins.0: 'https://app.example.com/page' is no origin, expected https://app.example.com, or * for "
         "all"),
        ("auth: {api_keys: [{key: ${KEY}}]}\n",
         "1: not YAML: expected ',' or '}', but got '{'; inside { } and [ ], write \"${NAME}\" with quotes"),
        ("server:\n  port: 1\nlog: {}\nserver:\n  port: 2\n", "4: server is here twice, first in line 1"),
        ("server:\n  port: 1\n  port: 2\n", "3: server.port is here twice, first in line 2"),
        ("server: {port: 1, port: 2}\n", "1: server.port is here twice, first in line 1"),
        ("server:\n  [a, b]: 1\n", "2: a key has to be a word, got a list or section"),
        ("server:\n  host: ${NOWHERE}\n", "2: server.host: environment variable NOWHERE is not set"),
        ("server:\n  host: ${HOLLOW}\n", "2: server.host: environment variable HOLLOW is empty"),
        ("server:\n  host: ${A-b}\n", "2: server.host: expected ${NAME}, got '${A-b}'; write $$ for a dollar sign"),
        ("server:\n  host: ${A\n", "2: server.host: expected ${NAME}, got '${'; write $$ for a dollar sign"),
        ("server:\n  host: !secret a\n", "2: server.host: tags have no meaning here, got !secret"),
        ("server:\n  port: [1\n", "3: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("server:\n\tport: 1\n", "2: not YAML: found character '\\t' that cannot start any token"),
        ("a: 1\n---\nb: 2\n", "2: not YAML: but found another document"),
        ("- a\n", "1: expected sections (`server:`, `routes:` ...) at the top level"),
        ("server: &a\n  tls: *a\n", "1: server.tls contains itself"),
        ("server:\n  <<: 3\n", "2: `<<` takes a section, or a list of sections"),
        ("[" * 5000, "not a configuration: nested too deeply"),
        (b"server: \xff\xfe\n", "not YAML: "),
        ("server:\n  public_url: https://a.example\n",
         "server.public_url https://a.example leads the outside to `/`, `/v1` and `/metrics`: "
         "set auth.api_keys"),
        ("server: {public_url: https://a.example, insecure: true}\nauth: {api_keys: [{key: k}]}\n",
         "server.insecure: true opens `/`, `/v1` and `/metrics` to everybody who knows server.public_url "
         "https://a.example: set auth.api_keys instead"),
        ("engine:\n  speech: {max_chars: 19999}\n",
         "engine.speech.max_chars is 19999, less than limits.turn_chars (20000): a turn that the gateway takes would "
         "fail in the engine"),
        ("routes:\n  a:\n    tenant: shp\nauth: {api_keys: [{key: k, tenant: shop}]}\n",
         "routes.a.tenant is 'shp', which no key of auth.api_keys has (shop)"),
        ("auth:\n  api_keys:\n    - key: k\n      scopes: [reed]\n",
         "4: auth.api_keys.0.scopes.0: expected 'speak', 'calls', 'supervise', 'read', 'admin' or 'browser'; "
         "got 'reed'"),
        ("carriers:\n  telnyx:\n    public_key: not a key\n",
         "3: carriers.telnyx.public_key: this is no Ed25519 public key, expected base64 of 32 bytes"),
        ("carriers:\n  genesys:\n    client_secret: a-secret-!\n",
         "3: carriers.genesys.client_secret: this is no base64, which Genesys Cloud shows client secrets in"),
        ("routes:\n  a:\n    recording: true\n", "routes.a.recording is on, but recording.folder is empty"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str | bytes, expected: str) -> None:
    (problem,) = problems(tmp_path, text, HOLLOW="")
    assert problem.startswith(expected) if expected.endswith(": ") else problem == expected


def test_all_mistakes_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(tmp_path, "log:\n  level: loud\nserver:\n  port: x\n  prot: 1\n")
    assert [problem.split(":")[0] for problem in found] == ["2", "4", "5"]


def test_unsafe_twilio_demo_stays_on_loopback(tmp_path: Path) -> None:
    text = "server: {host: 0.0.0.0}\nauth: {api_keys: [{key: k}]}\ncarriers: {twilio: {verify: false}}\n"
    (problem,) = problems(tmp_path, text)
    assert "carriers.twilio.verify is off while 0.0.0.0 can be reached from outside" in problem
    (problem,) = problems(tmp_path, text.replace("host: 0.0.0.0", "public_url: https://a.example"))
    assert "carriers.twilio.verify is off while https://a.example can be reached" in problem
    assert loaded(tmp_path, text.replace("0.0.0.0", "127.0.0.1")).server.host == "127.0.0.1"
    (problem,) = problems(tmp_path, text.replace("0.0.0.0", "0.0.0.0, insecure: true"))
    assert problem.endswith("leave it on, or take the carrier out of the configuration")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml", environment={})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, environment={})


def test_a_script_that_is_not_there_is_told_with_its_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "routes:\n  a:\n    dialogue:\n      script: talk.yaml\n")
    assert problem == f"4: routes.a.dialogue.script: no such file: {tmp_path / 'talk.yaml'}"


def test_an_origin_is_read_as_browsers_write_it(tmp_path: Path) -> None:
    origins = "['https://App.example.com:443/', 'http://127.0.0.1:3000', 'capacitor://localhost', '*']"
    webrtc = loaded(tmp_path, f"webrtc: {{allowed_origins: {origins}}}\n").webrtc
    assert webrtc.allowed_origins == (
        "https://app.example.com",
        "http://127.0.0.1:3000",
        "capacitor://localhost",
        "*",
    )


def test_a_recogniser_that_cannot_be_is_told_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "routes:\n  a:\n    recogniser: embedded\n"
    assert loaded(tmp_path, text).routes["a"].recogniser == "embedded"
    (problem,) = problems(tmp_path, text + "    language: de-DE\n")
    assert problem == "3: routes.a.recogniser: embedded knows English only, the route's language is de-DE"
    (problem,) = problems(tmp_path, text.replace("embedded", "external"))
    assert problem == "3: routes.a.recogniser: external needs recogniser.url"
    (problem,) = problems(tmp_path, text.replace("embedded", "whisper"))
    assert problem == "3: routes.a.recogniser: whisper needs recogniser.whisper.folder"
    (problem,) = problems(tmp_path, text.replace("embedded", "whisper") + "recogniser: {whisper: {folder: .}}\n")
    assert problem == "3: routes.a.recogniser: recogniser.whisper.folder has no config.json"
    (problem,) = problems(tmp_path, "recogniser: {url: https://a.example}\n")
    assert "expected wss:// or ws://" in problem
    monkeypatch.setattr("gateway.recognition.moonshine.PACKAGE", "no_such_package")
    (problem,) = problems(tmp_path, text)
    assert problem == (
        f"3: routes.a.recogniser: embedded needs the extra [recogniser]: {pip_install('talkspurt[recogniser]')}"
    )
    assert loaded(tmp_path, text.replace("embedded", "auto")).routes["a"].recogniser == "auto"


def test_a_voice_that_the_embedded_engine_lacks_is_told_with_its_line(tmp_path: Path) -> None:
    text = "routes:\n  a:\n    voice: nosuch\n"
    assert problems(tmp_path, text) == ["3: routes.a.voice: the embedded engine has no voice 'nosuch'; it has heart"]
    assert loaded(tmp_path, text.replace("nosuch", "heart")).routes["a"].voice == "heart"
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices/zf_xiaoxiao.bin").write_bytes(b"")
    more = f"engine: {{embedded: {{espeak: [de], mandarin: {{voices_folder: {tmp_path}/voices}}}}}}\n"
    (problem,) = problems(tmp_path, text + more)
    assert problem.endswith("it has heart, zf_xiaoxiao, espeak:de")
    # Voices inside of a package, and those of engines where voices are registered, only the running engine knows.
    for more in (
        "engine: {embedded: {mandarin: {}}}",
        "engine: {kind: cosyvoice3}",
        "engine: {targets: ['127.0.0.1:1']}",
    ):
        assert loaded(tmp_path, f"{text}{more}\n").routes["a"].voice == "nosuch"


def test_a_route_that_cannot_hear_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = loaded(
        tmp_path,
        "routes: {hears: {recogniser: auto}, forgotten: {}, on-purpose: {recogniser: ''}, "
        "german: {recogniser: auto, language: de}}\n",
    ).routes
    assert deaf_routes(routes).keys() == {"forgotten", "german"}
    assert "routes.forgotten.recogniser" in deaf_routes(routes)["forgotten"]
    assert "English only" in deaf_routes(routes)["german"]
    monkeypatch.setattr("gateway.recognition.moonshine.PACKAGE", "no_such_package")
    assert pip_install("talkspurt[recogniser]") in deaf_routes(routes)["hears"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_hears_or_is_deaf_on_purpose(path: Path) -> None:
    routes = load(path, environment=SECRETS).routes
    assert all("recogniser" in route.model_fields_set for route in routes.values())
    assert not deaf_routes({name: route for name, route in routes.items() if route.language.startswith("en")})


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, "clips: {folder: clips}\nrecording: {folder: /var/calls}\n")
    assert config.clips.folder == str(tmp_path / "clips")
    assert config.recording.folder == "/var/calls"


def test_text_is_taken_as_it_is_written(tmp_path: Path) -> None:
    config = loaded(
        tmp_path, "routes:\n  a:\n    language: no\n    parameters: {pin: 0123, day: 2024-01-31, at: 12:30}\n"
    )
    assert config.routes["a"].language == "no"
    assert config.routes["a"].parameters == {"pin": "0123", "day": "2024-01-31", "at": "12:30"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "server:\n#  port: 1\nroutes:\n"])
def test_what_is_left_out_has_its_default(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text) == Config()


def test_routes_share_settings_by_an_anchor(tmp_path: Path) -> None:
    text = "routes:\n  a: &shared\n    voice: heart\n    fallback: wait\n  b:\n    <<: *shared\n    voice: other\n"
    text += "engine: {kind: tone}\n"
    config = loaded(tmp_path, text)
    assert (config.routes["b"].voice, config.routes["b"].fallback.text) == ("other", "wait")
    (problem,) = problems(tmp_path, text.replace("fallback", "falback"))[:1]
    assert problem == "4: unknown key routes.a.falback; did you mean fallback?"


def test_a_fallback_is_a_text_or_a_section(tmp_path: Path) -> None:
    text = (
        "engine: {kind: tone}\nroutes:\n  a: {fallback: wait}\n  b:\n    fallback: {text: wait, transfer: '+4930123'}\n"
    )
    routes = loaded(tmp_path, text, TALKSPURT__ROUTES__C__FALLBACK="hold on").routes
    told = {name: (route.fallback.text, route.fallback.transfer) for name, route in routes.items()}
    assert told == {"a": ("wait", ""), "b": ("wait", "+4930123"), "c": ("hold on", "")}
    (problem,) = problems(tmp_path, text.replace("transfer", "transfr"))[:1]
    assert problem == "5: unknown key routes.b.fallback.transfr; did you mean transfer?"


def test_variables_are_filled_in_whatever_the_type(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "server: {port: '${PORT}', public_url: 'https://${HOST}/a'}\nauth: {api_keys: [{key: k}]}\n"
        "carriers: {twilio: {auth_token: 'a$$b$c${T}'}}\n",
        PORT="81",
        HOST="example.com",
        T="007",
    )
    assert (config.server.port, config.server.public_url) == (81, "https://example.com/a")
    twilio = config.carriers.configured()["twilio"].settings
    assert isinstance(twilio, TwilioConfig) and twilio.auth_token is not None
    assert twilio.auth_token.get_secret_value() == "a$b$c007"


def test_overrides_win_and_are_typed_by_the_model(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "engine: {kind: tone}\nserver: {port: 1}\nroutes: {main-line: {voice: a}}\nauth: {api_keys: [{key: a}]}\n",
        TALKSPURT__SERVER__PORT="9000",
        TALKSPURT__SERVER__TRUSTED_PROXIES="[10.0.0.0/8, 127.0.0.1]",
        TALKSPURT__SERVER__TLS="{certificate: /c, key: /k}",
        TALKSPURT__ROUTES__MAIN_LINE__VOICE="[b",  # text: taken as it is
        TALKSPURT__ROUTES__OTHER__LANGUAGE="de-DE",
        TALKSPURT__AUTH__API_KEYS__0__TENANT="shop",
        TALKSPURT_PORT="3",  # not ours
    )
    assert config.server.port == 9000
    assert config.server.trusted_proxies == ("10.0.0.0/8", "127.0.0.1")
    assert config.server.tls is not None and config.server.tls.key == "/k"
    assert {name: (r.voice, r.language) for name, r in config.routes.items()} == {
        "main-line": ("[b", "en-US"),
        "other": ("", "de-DE"),
    }
    assert config.auth.api_keys[0].tenant == "shop"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TALKSPURT__SERVER__PORTT", "1", "unknown key server.portt; did you mean port?"),
        ("TALKSPURT__SERVR__PORT", "1", "unknown key servr; did you mean server?"),
        ("TALKSPURT__SERVER__PORT", "x", "server.port: expected a whole number; got 'x'"),
        ("TALKSPURT__SERVER__PORT__X", "1", "server.port has no key 'x'"),
        ("TALKSPURT__LOG", "{level: loud}", "log.level: expected 'debug', 'info', 'warning' or 'error'; got 'loud'"),
        ("TALKSPURT__LOG", "[", "not YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_a_wrong_override_is_told_with_its_name(tmp_path: Path, variable: str, value: str, expected: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("server: {port: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, environment={variable: value})
    assert [str(problem) for problem in caught.value.problems] == [f"{variable}: {expected}"]


def test_options_win_over_everything() -> None:
    environment = {"TALKSPURT__SERVER__PORT": "2"}
    assert load(None, environment=environment, overrides={"server.port": "3"}).server.port == 3
    with pytest.raises(ConfigError, match=r"^--port: server.port: expected a whole number; got 'x'$"):
        load(None, environment=environment, overrides={"server.port": "x"})


def test_secrets_stay_out_of_what_is_shown_and_of_errors(tmp_path: Path) -> None:
    text = (
        "auth: {api_keys: [{key: SECRET}]}\n"
        "carriers: {twilio: {auth_token: SECRET}}\n"
        "server: {stream_token_secret: SECRET}\n"
        "routes: {a: {dialogue: {\n"
        "  url: 'wss://user:SECRET@x/y?api_key=SECRET&a=SECRET#f',\n"
        "  auth_token: SECRET, headers: {Authorization: SECRET}}}}\n"
    )
    shown = effective_yaml(loaded(tmp_path, text))
    assert "SECRET" not in shown
    assert yaml.safe_load(shown)["routes"]["a"]["dialogue"]["headers"] == {"Authorization": "**********"}
    for mistake in ("auth: {api_keys: [SECRET]}", "carriers: {twilio: SECRET}"):
        assert "SECRET" not in "".join(problems(tmp_path, mistake))


def test_the_effective_configuration_is_a_configuration(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        "routes: {a: {voice: heart, hints: [c]}}\n"
        "sip: {trunks: {t: {addresses: [192.0.2.0/24], headers: [X-Id, X-A-*], route: a}}}\n",
    )
    assert loaded(tmp_path, effective_yaml(config)) == config


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load_and_fit_the_schema(path: Path) -> None:
    load(path, environment=SECRETS)
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


def test_the_schema_is_one_and_refuses_unknown_keys() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError, match="prot"):
        jsonschema.validate({"server": {"prot": 1}}, schema)


def test_every_key_is_documented() -> None:
    models = [json_schema(), *json_schema()["$defs"].values()]
    silent = [
        f"{model['title']}.{key}"
        for model in models
        for key, value in model.get("properties", {}).items()
        if not value.get("description") and "$ref" not in value
    ]
    assert not silent
    assert all(model["description"] for model in models)


def test_the_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == markdown(), (
        "run: talkspurt config reference > docs/configuration.md"
    )
