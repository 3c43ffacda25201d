"""API keys of a file: what is kept of them, and how a running server takes changes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.config import ApiKey, AuthConfig, KeyRights, LimitsConfig, RouteConfig, ServerConfig
from gateway.credentials import api_keys
from gateway.errors import CredentialsError, Rejected
from gateway.http.request.auth import Authenticator
from gateway.limits.limiter import Limiter
from gateway.principal import Principal
from gateway.tokens import Tokens
from talkspurt.cli import main
from tts_engine.supervision import SUPERVISOR

NOW = 1_800_000_000.0


def request(key: str) -> web.Request:
    return make_mocked_request("GET", "/v1/calls", headers={"Authorization": f"Bearer {key}"})


def who(auth: Authenticator, key: str) -> Principal | str:
    """Return the principal that shows the key, or the reason of the refusal."""
    try:
        return auth.check(request(key))[1]
    except Rejected as exc:
        return exc.code


def authenticator(path: Path, **fields: object) -> Authenticator:
    routes = {"a": RouteConfig(tenant="one"), "b": RouteConfig(tenant="two")}
    auth = AuthConfig.model_validate({"keys_file": str(path), **fields})
    return Authenticator(auth, ServerConfig(), routes, Tokens("a secret", lifetime_s=60), Limiter(LimitsConfig()))


def test_a_file_keeps_the_digest_of_a_key_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "keys.json"
    assert api_keys.read(path) == ()
    made, key = api_keys.create(path, now=NOW, tenant="shop", scopes=("speak",), name="till", expires_at=NOW + 5)
    assert re.fullmatch(r"tsk_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", key)
    assert key.split("_")[1] == made.id and key.removeprefix(f"tsk_{made.id}_") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert api_keys.read(path) == (made,) and bytes.fromhex(made.sha256) == api_keys.digest(key.encode())
    assert [made.state(NOW + later) for later in (4, 5)] == ["active", "expired"]


def test_workers_count_what_a_key_uses_together(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = [{"key": "shop", "calls_per_minute": 3, "concurrent_calls": 2}, {"key": "other"}]
    one, two = (authenticator(path, api_keys=keys) for _ in range(2))
    of_one, of_two = (worker.check(request("shop"))[0].allowance for worker in (one, two))

    def tell() -> None:
        told = [worker.tallies() for worker in (one, two)]
        two.add(told[0], now=0.0)
        one.add(told[1], now=0.0)

    tell()
    for _ in range(2):
        of_one.count(0.0)
        of_one.enter()
    tell()
    with pytest.raises(Rejected, match="2 calls at a time"):
        of_two.check_room()
    of_one.leave()
    tell()
    of_two.check_room()
    of_two.check_rate(0.0)
    of_two.count(0.0)
    tell()
    for allowance in (of_one, of_two):
        with pytest.raises(Rejected, match="3 times a minute"):
            allowance.check_rate(0.0)
    two.check(request("other"))[0].allowance.check_rate(0.0)
    begun = authenticator(path, api_keys=keys)
    begun.add(one.tallies(), now=100.0)
    begun.check(request("shop"))[0].allowance.check_rate(100.0)  # what was counted long ago is not of this minute
    assert "shop" not in str(one.tallies())


def test_a_revoked_key_stays_revoked_and_an_unknown_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    one, two = (api_keys.create(path, now=NOW, tenant="shop")[0] for _ in range(2))
    for at in (NOW + 1, NOW + 2):
        assert api_keys.revoke(path, one.id, now=at).revoked_at == NOW + 1
    assert [key.state(NOW + 3) for key in api_keys.read(path)] == ["revoked", "active"]
    with pytest.raises(CredentialsError, match="has no key '123'"):
        api_keys.revoke(path, "123", now=NOW)
    assert api_keys.read(path)[1] == two


def test_no_key_is_lost_when_several_are_made_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: api_keys.create(path, now=NOW, tenant="shop")[0].id, range(40)))
    assert sorted(key.id for key in api_keys.read(path)) == sorted(made)
    assert sorted(found.name for found in tmp_path.iterdir()) == [".keys.json.lock", "keys.json"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "Invalid JSON"), ('{"version": 2}', "version: Input should be 1"), ('{"keys": [{"id": "x"}]}', "keys.0.id")],
)
def test_another_file_is_refused_and_left_alone(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    for attempt in (lambda: api_keys.read(path), lambda: api_keys.create(path, now=NOW, tenant="shop")):
        with pytest.raises(CredentialsError, match=f"keys.json is not a file of keys: .*{problem}"):
            attempt()
    assert path.read_text() == text


@pytest.mark.virtual_time
async def test_a_running_server_takes_new_and_revoked_keys_within_two_seconds(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    configured = ApiKey.model_validate({"key": "of the environment", "tenant": "one"})
    auth = authenticator(path, api_keys=(configured,))
    watch = asyncio.create_task(auth.watch())
    made, key = api_keys.create(path, now=time.time(), tenant="two", scopes=("calls",))
    assert who(auth, key) == "unauthorized"
    await asyncio.sleep(2)
    found = who(auth, key)
    assert isinstance(found, Principal) and found.scopes == {"calls"} and found.sees("b") and not found.sees("a")
    tenant = auth.check(request(key))[0]
    api_keys.create(path, now=time.time(), tenant="one")
    await asyncio.sleep(2)
    assert auth.check(request(key))[0] is tenant, "its counters began again"

    path.write_text("half of a fi")  # what cannot be read leaves what was
    await asyncio.sleep(2)
    assert isinstance(who(auth, key), Principal)

    path.unlink()
    api_keys.create(path, now=time.time(), tenant="one")
    await asyncio.sleep(2)
    assert who(auth, key) == "unauthorized"
    assert isinstance(who(auth, "of the environment"), Principal)
    watch.cancel()


@pytest.mark.virtual_time
@pytest.mark.parametrize("broken", [b"half of a fi", b"[" * 200_000, b"", b"\xff\xfe", b'{"keys": [null]}'])
async def test_a_broken_file_of_keys_is_told_once_and_works_again_when_mended(
    tmp_path: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    _, key = api_keys.create(path, now=time.time(), tenant="one")
    auth = authenticator(path)
    watch = SUPERVISOR.task("keys", auth.watch)
    whole = path.read_bytes()
    path.write_bytes(broken)
    await asyncio.sleep(20)
    assert isinstance(who(auth, key), Principal), "what cannot be read leaves the keys that were"
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["changed file cannot be used, its old content stays in effect"]
    path.write_bytes(whole)
    _, later = api_keys.create(path, now=time.time(), tenant="two")
    await asyncio.sleep(2)
    assert isinstance(who(auth, key), Principal) and isinstance(who(auth, later), Principal)
    assert watch.state.running and not watch.state.restarts
    await watch.aclose()


@pytest.mark.virtual_time
async def test_a_revoked_key_takes_its_browsers_along(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made, key = api_keys.create(path, now=time.time(), tenant="one")
    auth = authenticator(path)
    watch = asyncio.create_task(auth.watch())
    cookie = auth.session(key)
    assert isinstance(who(auth, cookie), Principal)
    tenant, _ = auth.check(request(key))
    assert auth._is_good(tenant), "a manager of this key gets calls"
    api_keys.revoke(path, made.id, now=time.time())
    await asyncio.sleep(2)
    assert (who(auth, key), who(auth, cookie)) == ("unauthorized", "unauthorized")
    assert not auth._is_good(tenant)
    watch.cancel()


def test_a_manager_gets_calls_until_its_key_expires(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", time.time()
    _, key = api_keys.create(path, now=now, tenant="one", expires_at=now + 60)
    auth = authenticator(path)
    tenant, _ = auth.check(request(key))
    assert auth._is_good(tenant)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 60)
        assert not auth._is_good(tenant)


def test_an_expired_key_and_its_browsers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    _, key = api_keys.create(path, now=0.0, tenant="one", expires_at=time.time() - 1)
    auth = authenticator(path)
    assert (who(auth, key), who(auth, auth.session(key))) == ("expired_key", "expired_key")


def test_an_empty_file_opens_nothing(tmp_path: Path) -> None:
    auth = authenticator(tmp_path / "keys.json")
    assert (who(auth, ""), who(auth, "-")) == ("unauthorized", "unauthorized")


def test_the_command_prints_a_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("auth:\n  keys_file: keys.json\n")
    assert main(["keys", "create", "-c", str(config), "--tenant", "shop", "--scope", "speak", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["key"].startswith(f"tsk_{made['id']}_")
    assert main(["keys", "revoke", made["id"], "-c", str(config)]) == 0
    assert "revoked" in capsys.readouterr().out
    assert main(["keys", "list", "-c", str(config), "--json"]) == 0
    shown = capsys.readouterr().out
    secret = made["key"].removeprefix(f"tsk_{made['id']}_")  # it may have a "_" itself
    assert len(secret) == 43 and secret not in shown
    (listed,) = json.loads(shown)
    assert (listed["state"], listed["tenant"], listed["scopes"]) == ("revoked", "shop", ["speak"])


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["list"], 2, "no auth.keys_file"),
        (["revoke", "0a", "--keys-file", "missing.json"], 1, "has no key '0a'"),
        (["create", "--keys-file", "k.json", "--days", "-1"], 2, "expected a number of more than 0"),
        (["create", "--keys-file", "k.json", "--tenant", ""], 2, "expected a name"),
    ],
)
def test_what_is_wrong_with_a_command_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["keys", *arguments]) == code
    except SystemExit as exc:
        assert exc.code == code
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


async def test_without_keys_the_engine_alone_says_how_many_requests_may_speak(tmp_path: Path) -> None:
    _, key = api_keys.create(tmp_path / "keys.json", now=NOW, tenant="shop")
    open_to_all = Authenticator(
        AuthConfig(), ServerConfig(), {}, Tokens("a secret", lifetime_s=60), Limiter(LimitsConfig())
    )
    most = KeyRights().concurrent_calls
    for auth, admitted in ((open_to_all, 2 * most), (authenticator(tmp_path / "keys.json"), most)):
        tenant, _ = auth.check(request(key))
        async with AsyncExitStack() as speaking:
            for _ in range(admitted):
                await speaking.enter_async_context(tenant.occupied())
            if auth is not open_to_all:
                with pytest.raises(Rejected, match=f"{most} calls at a time"):
                    await speaking.enter_async_context(tenant.occupied())
