"""The list of keys: it has their rights and states, and never a key."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import aiohttp

from gateway.credentials import api_keys
from tests.gateway.http.api_gateway import api_gateway

SECRET = "a-long-random-key-of-the-operator"


async def test_keys_of_both_sources_are_listed_with_their_states_and_without_the_keys(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", time.time()
    made, key = api_keys.create(path, now=now, tenant="shop", scopes=("speak", "calls"), name="the shop's bot")
    revoked, _ = api_keys.create(path, now=now, tenant="shop")
    expired, _ = api_keys.create(path, now=now - 100, tenant="shop", expires_at=now - 1)
    api_keys.revoke(path, revoked.id, now=now)
    auth: dict[str, Any] = {
        "api_keys": [{"key": SECRET, "tenant": "office", "scopes": ["admin"]}],
        "keys_file": str(path),
    }
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with api_gateway(tmp_path, auth=auth) as (_, _, url), aiohttp.ClientSession(headers=headers) as http:
        async with http.get(f"{url}/v1/keys") as answer:
            text, listed = await answer.text(), await answer.json()
    assert (listed["required"], listed["changeable"]) == (True, True)
    seen = [(each["id"], each["source"], each["tenant"], each["state"]) for each in listed["keys"]]
    assert seen == [
        ("", "configuration", "office", "active"), (made.id, "file", "shop", "active"),
        (revoked.id, "file", "shop", "revoked"), (expired.id, "file", "shop", "expired"),
    ]  # fmt: skip
    assert listed["keys"][0]["lastUsedAt"] >= now and listed["keys"][1]["lastUsedAt"] is None
    assert listed["keys"][1]["scopes"] == ["calls", "speak"]
    assert listed["keys"][1]["name"] == "the shop's bot"
    assert not any(secret in text for secret in (SECRET, key, made.sha256))


async def test_without_keys_the_list_is_empty_and_none_is_required(tmp_path: Path) -> None:
    async with api_gateway(tmp_path) as (_, _, url), aiohttp.ClientSession() as http:
        async with http.get(f"{url}/v1/keys") as answer:
            assert await answer.json() == {"required": False, "changeable": False, "keys": []}
