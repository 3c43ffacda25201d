"""The calls, scopes and voices of each principal, by the configuration alone."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from gateway.config import SCOPES, ApiKey, RouteConfig
from gateway.errors import Rejected
from gateway.principal import ANYONE, Principal, principal_of, sees_voice, sole_tenant, voices_of_routes

ROUTES = {"a": RouteConfig(tenant="one"), "b": RouteConfig(tenant="two"), "free": RouteConfig()}


def principals(*keys: ApiKey) -> list[Principal]:
    sole = sole_tenant(keys, {})
    return [principal_of(key.tenant, key.scopes, sole=sole, routes=ROUTES) for key in keys]


def key(tenant: str, **fields: object) -> ApiKey:
    return ApiKey.model_validate({"key": SecretStr("k"), "tenant": tenant, **fields})


def test_a_tenant_sees_its_own_routes_and_an_admin_sees_all() -> None:
    one, two, admin = principals(key("one"), key("two"), key("office", scopes=("read", "admin")))
    seen = [[name for name in ROUTES if who.sees(name)] for who in (one, two, admin)]
    assert seen == [["a"], ["b"], ["a", "b", "free"]]
    assert one.scopes == set(SCOPES) - {"admin"}


@pytest.mark.parametrize("name", ["b", "free", "none"])
def test_a_foreign_route_and_none_at_all_are_refused_alike(name: str) -> None:
    one, _ = principals(key("one"), key("two"))
    with pytest.raises(Rejected, match=f"no route '{name}'") as refused:
        one.check_route(name, ROUTES)
    assert refused.value.status == 404


def test_a_route_is_hinted_at_only_to_those_who_see_it() -> None:
    one, admin = principals(key("one"), key("office", scopes=("admin",)))
    for who, hint in ((one, ""), (admin, ", did you mean 'free'?")):
        with pytest.raises(Rejected) as refused:
            who.check_route("fre", ROUTES)
        assert str(refused.value) == f"no route 'fre'{hint}"


def test_keys_of_one_tenant_have_everything_as_before_there_were_scopes() -> None:
    first, second = principals(key("desk"), key("desk", scopes=("read",)))
    assert first.scopes == set(SCOPES) and second.scopes == {"read"}
    for who in (first, second, ANYONE):
        assert all(who.sees(name) for name in ROUTES) and who.own_voice("anna") == "anna"
    assert voices_of_routes("desk", ROUTES) == {}


def test_a_missing_scope_is_named() -> None:
    (reader,) = principals(key("desk", scopes=("read",)))
    reader.check_scope("read")
    with pytest.raises(Rejected, match="needs the scope calls, the key has read") as refused:
        reader.check_scope("calls")
    assert (refused.value.status, refused.value.code) == (403, "missing_scope")


@pytest.mark.parametrize(("tenant", "other"), [("one", "two"), ("a-b", "a_b"), ("shop", "shop--x"), ("é", "e")])
def test_voices_of_two_tenants_never_meet(tenant: str, other: str) -> None:
    mine, theirs = (who.own_voice("anna") for who in principals(key(tenant), key(other)))
    first, second = principals(key(tenant), key(other))
    assert first.own_voice(mine) == mine
    assert sees_voice(first.voices, mine) and sees_voice(second.voices, theirs) and sees_voice(first.voices, "tone")
    assert not sees_voice(first.voices, theirs) and not sees_voice(second.voices, mine)
    assert not sees_voice(second.voices, second.own_voice(mine).removeprefix(second.voices))


def test_calls_of_a_route_know_the_voices_of_its_tenant() -> None:
    assert voices_of_routes(None, ROUTES) == {"a": "one--", "b": "two--"}


def test_the_only_tenant_is_the_only_one_that_the_configuration_names() -> None:
    assert sole_tenant((), {}) == "default" and sole_tenant((), {"r": RouteConfig()}) == "default"
    assert sole_tenant((key("desk"),), {"r": RouteConfig()}) == "desk"
    assert sole_tenant((), {"r": RouteConfig(tenant="one")}) == "one"
    assert sole_tenant((key("desk"),), {"r": RouteConfig(tenant="one")}) is None and sole_tenant((), ROUTES) is None


def test_a_tenant_that_the_configuration_does_not_name_sees_nothing_of_the_house() -> None:
    guest = principal_of("guest", None, sole="default", routes={"a": RouteConfig()})
    assert not guest.sees("a") and "admin" not in guest.scopes and guest.own_voice("anna") == "guest--anna"
