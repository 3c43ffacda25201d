"""The allowed targets, caller ids and rates of outgoing calls; time is a number here."""

from typing import Any

import pytest

from gateway.calling.allowance import CountedAllowance
from gateway.calling.policy import CallingPolicy
from gateway.config import CallingConfig, RouteConfig
from gateway.errors import Rejected
from gateway.seams.calling import Allowed
from gateway.seams.leg import CallInfo
from gateway.seams.originate import CallOrder

NUMBER = "+4930123"


def policy(routes: dict[str, dict[str, Any]] | None = None, sip: tuple[str, ...] = (), **calling: Any) -> CallingPolicy:
    made = {name: RouteConfig.model_validate({"calling": own}) for name, own in (routes or {"r": {}}).items()}
    return CallingPolicy(CallingConfig.model_validate(calling), made, sip_targets=sip)


def call(transport: str = "twilio", route: str = "r", domain: str = "") -> CallInfo:
    return CallInfo(call_id="VX1", route=route, transport=transport, domain=domain)


def refused(made: CallingPolicy, target: str, who: CallInfo | None = None, *, now: float = 0.0) -> tuple[int, str]:
    with pytest.raises(Rejected) as caught:
        made.transfer(who or call(), target, now=now)
    assert not any(digit in str(caught.value) for digit in "123456789") or caught.value.status == 429
    return caught.value.status, caught.value.code


@pytest.mark.parametrize("target", [NUMBER, "7201", "agent-7", "sip:a@pbx.example", "*21#", "+88216123456"])
@pytest.mark.parametrize("transport", ["twilio", "sip", "audiosocket", "webrtc"])
def test_nobody_may_be_called_by_default(target: str, transport: str) -> None:
    assert refused(policy(), target, call(transport)) == (403, "target_not_allowed")


def test_a_call_of_any_transport_reaches_the_sip_targets_by_sip() -> None:
    made = policy(sip=("*@pbx.example",))
    for transport in ("twilio", "webrtc", "sip"):
        assert made.transfer(call(transport), "sip:a@pbx.example", now=0.0, by_sip=True) == "sip:a@pbx.example"
    assert refused(made, "sip:a@pbx.example") == (403, "target_not_allowed")


def test_what_is_allowed_is_dialled_in_its_one_form() -> None:
    made = policy(allowed_targets=["+49*", "*@pbx.example"])
    assert made.transfer(call(), "0049 30 123", now=0.0) == NUMBER
    assert made.transfer(call(), "sip:a@PBX.example", now=0.0) == "sip:a@pbx.example"
    assert refused(made, "+88216123456") == (403, "target_not_allowed")
    assert refused(made, "http://pbx.example") == (422, "invalid_target")


@pytest.mark.parametrize(
    "target", ["+4990012", "004990012", "sip:004990012@pbx.example", "sip:+4990012@pbx.example:5061"]
)
def test_denied_beats_allowed(target: str) -> None:
    made = policy(allowed_targets=["*", "*@*"], denied_targets=["+49900*"])
    assert refused(made, target) == (403, "target_not_allowed")
    assert made.transfer(call(), NUMBER, now=0.0) == NUMBER


def test_a_route_may_have_targets_of_its_own() -> None:
    made = policy({"r": {}, "sales": {"allowed_targets": ["7*"]}}, sip=("*@pbx.example",), allowed_targets=["+49*"])
    assert made.transfer(call(route="sales"), "7201", now=0.0) == "7201"
    assert refused(made, NUMBER, call(route="sales")) == (403, "target_not_allowed")
    assert refused(made, "sip:a@pbx.example", call("sip", route="sales")) == (403, "target_not_allowed")


def test_the_targets_of_the_sip_section_are_for_sip_alone() -> None:
    made = policy(sip=("+4930*@pbx.example",))
    assert made.transfer(call("sip", domain="pbx.example:5070"), NUMBER, now=0.0) == NUMBER
    assert made.transfer(call("sip"), "sip:+4930123@pbx.example", now=0.0) == "sip:+4930123@pbx.example"
    assert refused(made, NUMBER, call("sip", domain="other.example")) == (403, "target_not_allowed")
    assert refused(made, "sip:+4930123@pbx.example") == (403, "target_not_allowed")


def test_a_live_call_is_named_by_its_id_on_sip_only() -> None:
    other = "VX" + "0" * 32
    assert policy().transfer(call("sip"), other, now=0.0) == other
    assert refused(policy(), other) == (403, "target_not_allowed")


@pytest.mark.parametrize("target", ["+4930123,,7", "+4930123;7", "+4930123w7", "tel:+4930123;ext=7", "+4930123x7",
                                    "sip:+4930123;ext=7@pbx.example"])  # fmt: skip
def test_keys_behind_a_number_have_to_be_allowed(target: str) -> None:
    wide: dict[str, Any] = {"allowed_targets": ["*", "*@*"]}
    assert refused(policy(**wide), target) == (403, "target_not_allowed")
    assert policy(**wide, post_dial=True).transfer(call(), target, now=0.0) == target.removeprefix("tel:")


def test_a_route_may_transfer_so_many_times_a_minute() -> None:
    made = policy({"r": {"calls_per_minute": 2}, "other": {}}, allowed_targets=["+49*"])
    for _ in range(2):
        made.transfer(call(), NUMBER, now=100.0)
    assert refused(made, NUMBER, now=100.0) == (429, "rate_limited")
    assert refused(made, NUMBER, now=129.9) == (429, "rate_limited")
    made.transfer(call(route="other"), NUMBER, now=100.0)
    made.transfer(call(), NUMBER, now=130.0)


def test_what_is_refused_counts_for_nothing() -> None:
    made = policy({"r": {"calls_per_minute": 1}}, allowed_targets=["+49*"])
    for _ in range(3):
        refused(made, "+88216123456")
    made.transfer(call(), NUMBER, now=0.0)


# --- placed calls ---


def place(made: CallingPolicy, *, now: float = 0.0, **order: Any) -> Allowed:
    return made.place(
        CallOrder(**{"target": NUMBER, "route": "r", **order}), transport="sip", domain="pbx.example", now=now
    )


def not_placed(made: CallingPolicy, **order: Any) -> tuple[int, str, str, float]:
    with pytest.raises(Rejected) as caught:
        place(made, **order)
    return caught.value.status, caught.value.code, caught.value.param, caught.value.retry_after_s


def test_a_request_shows_only_caller_ids_that_are_listed() -> None:
    made = policy(allowed_targets=["+49*"], caller_ids=["+49305550*", "bot@example.org"])
    assert place(made).from_ == ""
    assert place(made, from_="0049 30 5550-1").from_ == "+493055501"
    assert place(made, from_="sip:bot@example.org").from_ == "sip:bot@example.org"
    assert not_placed(made, from_="+15550100") == (403, "caller_id_not_allowed", "from", 0)
    assert not_placed(made, from_="sip:+493055501@evil.example") == (403, "caller_id_not_allowed", "from", 0)
    assert not_placed(made, from_="no one in particular") == (422, "invalid_target", "from", 0)


@pytest.mark.parametrize(
    "name", ["P-Asserted-Identity", "p-preferred-identity", "Remote-Party-ID", "Diversion", "Privacy"]
)
def test_a_request_sets_only_headers_that_are_listed(name: str) -> None:
    made = policy(allowed_targets=["+49*"])
    place(made, headers={"X-Case": "7", "x-more": ""})
    assert not_placed(made, headers={"X-Case": "7", name: "<sip:+1@a>"}) == (403, "header_not_allowed", "headers", 0)
    place(policy(allowed_targets=["+49*"], sip_headers=[name.lower()]), headers={name: "<sip:+1@a>"})


def test_calls_at_once_are_counted_for_the_key_and_for_the_route() -> None:
    made = policy({"r": {"calls_at_once": 2}}, allowed_targets=["+49*"])
    one, other = (CountedAllowance(per_minute=9, at_once=1, whose="this key") for _ in range(2))
    first = place(made, allowance=one)
    assert not_placed(made, allowance=one) == (429, "too_many_calls", "", 1)
    place(made, allowance=other)
    assert not_placed(made) == (429, "too_many_calls", "", 1)
    first.over()
    place(made, allowance=one)


def test_calls_a_minute_are_counted_for_the_key_and_a_refusal_takes_nothing_from_the_route() -> None:
    made = policy({"r": {"calls_per_minute": 3}}, allowed_targets=["+49*"])
    key = CountedAllowance(per_minute=2, at_once=99, whose="this key")
    place(made, allowance=key)
    place(made, allowance=key)
    for _ in range(3):
        assert not_placed(made, allowance=key) == (429, "rate_limited", "", 30)
    place(made)
    assert not_placed(made) == (429, "rate_limited", "", 20)


def test_what_is_denied_is_denied_to_a_joined_call_too_wherever_it_is() -> None:
    made = policy(denied_targets=["+49900*"])
    for contact in ("sip:+4990012@192.0.2.4", "sip:004990012@192.0.2.4:5070"):
        with pytest.raises(Rejected, match="denied_targets"):
            made.check_joined(contact, at_peer=True, route="r", domain="")
    made.check_joined("sip:+4930@192.0.2.4", at_peer=True, route="r", domain="")
    with pytest.raises(Rejected, match="not an allowed target"):
        made.check_joined("sip:+4930@192.0.2.4", at_peer=False, route="r", domain="")


def test_workers_count_the_calls_of_a_route_together() -> None:
    routes = {"r": {"calls_at_once": 2, "calls_per_minute": 3}}
    one, other, third = workers = [policy(routes, allowed_targets=["+49*"]) for _ in range(3)]
    changes: list[int] = []
    one.on_count = lambda: changes.append(1)

    def tell() -> None:
        for worker in workers:
            tallies = [each.tallies().get("r", (0, 0)) for each in workers if each is not worker]
            worker.add({"r": (sum(live for live, _ in tallies), sum(placed for _, placed in tallies))}, now=0.0)

    first = place(one)
    tell()
    place(other)
    tell()
    tell()
    assert not_placed(third) == (429, "too_many_calls", "", 1)
    first.over()
    tell()
    place(third)
    tell()
    assert [not_placed(each)[1] for each in workers] == ["rate_limited"] * 3
    assert len(changes) == 2, "a call that began and one that ended"
    workers.remove(other)  # it dies, and what it had counted of this minute stays counted
    tell()
    assert [not_placed(each)[1] for each in workers] == ["rate_limited"] * 2
