"""The caller of an INVITE, and data handed along."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.seams.plain_text import plain
from sip_bridge.message.parameters import (
    DidFrom,
    caller_of,
    custom_headers,
    headers_of,
    number_of,
    read_user_to_user,
    route_of,
    user_to_user,
)
from sip_bridge.message.sip import Headers, Request, Uri, parse
from tests.sip_bridge.sip_messages import request


@pytest.mark.parametrize(
    ("uri", "number"),
    [
        ("sip:+49301@example.org", "+49301"),
        ("sip:%2B49301;phone-context=x@example.org;user=phone", "+49301"),
        ("sip:ann:secret@example.org", "ann"),
        ("tel:+49301;ext=7", "+49301"),
        ("sip:+49-(30)-1@example.org", "+49301"),
        ("sip:030-1.1@example.org;user=PHONE", "03011"),
        ("sip:ann-marie.lee@example.org", "ann-marie.lee"),
        ("sip:example.org", "sip:example.org"),
    ],
)
def test_the_number_of_a_uri(uri: str, number: str) -> None:
    assert number_of(Uri.parse(uri)) == number


def test_headers_become_parameters_by_pattern_and_never_those_of_the_protocol() -> None:
    headers = Headers([("X-A", "1"), ("x-a", "2"), ("Reason", "r"), ("Via", "v"), ("Authorization", "secret")])
    assert custom_headers(headers, ["X-*"]) == {"X-A": "1, 2"}
    assert custom_headers(headers, ["reason", "*"]) == {"X-A": "1, 2", "Reason": "r"}


def test_parameters_become_headers_and_cannot_smuggle_in_others() -> None:
    parameters = {"X-A": "1\r\nVia: evil", "X-B:": "2", "Route": "3", "Other": "4"}
    assert headers_of(parameters, ["X-*", "Route"]) == [("X-A", "1 Via: evil")]


def test_bytes_that_are_no_text_survive_as_replacement_characters() -> None:
    raw = request(headers=(("Contact", "<sip:a@b>"), ("X-Name", "M\udcfcller"))).serialise()
    caller = caller_of(parse(raw), ["X-*"])  # type: ignore[arg-type]
    assert caller.parameters == {"X-Name": "M\ufffdller"}
    assert (caller.from_, caller.to) == ("ann", "bot")


def test_hints_that_cannot_be_read_are_none() -> None:
    caller = caller_of(request(headers=(("P-Asserted-Identity", "<<"), ("Diversion", ""))), [])
    assert (caller.from_, caller.forwarded_from) == ("ann", "")


SIP_AND_TEL = '"Ann Lee" <sip:ann@carrier.example>, <tel:+49-30-111>'


@pytest.mark.parametrize(
    ("headers", "from_", "name"),
    [
        ([("P-Asserted-Identity", SIP_AND_TEL)], "+4930111", "Ann Lee"),
        ([("P-Asserted-Identity", "<sip:+4930111@c;user=phone>,<tel:+4930222>")], "+4930111", ""),
        ([("P-Asserted-Identity", "<tel:+4>"), ("P-Asserted-Identity", '"A, B" <sip:ann@c>')], "+4", "A, B"),
        ([("P-Asserted-Identity", "tel:+4930111 , sip:ann@c")], "+4930111", ""),
        ([("P-Asserted-Identity", "nonsense, <sip:ann2@c>")], "ann2", ""),
        ([("P-Asserted-Identity", "<sip:+1@c>"), ("Remote-Party-ID", "<sip:+2@c>")], "+1", ""),
        ([("Remote-Party-ID", '"Bob" <sip:+4930222@c>;party=calling;screen=yes;privacy=off')], "+4930222", "Bob"),
        ([("Remote-Party-ID", "<sip:+1@c>;party=called, <sip:+2@c>;party=calling")], "+2", ""),
        ([("Remote-Party-ID", "<sip:+1@c>;party=called"), ("Remote-Party-ID", "<sip:+2@c>")], "+2", ""),
        ([("P-Preferred-Identity", "<sip:x@c>, <tel:+4930333>")], "+4930333", ""),
        (
            [("P-Asserted-Identity", "<sip:anonymous@anonymous.invalid>"), ("Remote-Party-ID", '"Bob" <sip:+2@c>')],
            "+2",
            "Bob",
        ),
        ([("P-Asserted-Identity", "<sip:anonymous@anonymous.invalid>")], "anonymous", ""),
        ([("P-Preferred-Identity", "<sip:+3@c>"), ("Remote-Party-ID", "<sip:+2@c>;party=called")], "+3", ""),
        ([("P-Asserted-Identity", "Lee, Ann <sip:+49 30 111@c>")], "+4930111", "Ann"),
        ([("P-Asserted-Identity", '"Ann" sip:+4930111@c')], "+4930111", "Ann"),
        ([("P-Asserted-Identity", '""Ann"" <sip:+4930111@c;user=phone>')], "+4930111", "Ann"),
        ([("P-Asserted-Identity", "<sip:@c>"), ("P-Asserted-Identity", "<tel:+49-30-111>")], "+4930111", ""),
        ([("Remote-Party-ID", '"Bob" <sip:+2@c>;party="calling";privacy=off')], "+2", "Bob"),
    ],
)  # fmt: skip
def test_the_identity_of_the_caller(headers: list[tuple[str, str]], from_: str, name: str) -> None:
    """RFC 3325 section 9.1: one header may have a sip and a tel value."""
    anonymous = ("From", "<sip:anonymous@anonymous.invalid>;tag=a")
    invite = request(headers=tuple(headers))
    invite = replace(invite, headers=invite.headers.replace(*anonymous))
    caller = caller_of(invite, [])
    assert (caller.from_, caller.name) == (from_, name)


@pytest.mark.parametrize(
    ("value", "caller"),
    [
        ("<sip:@pbx.example>;tag=a", ("sip:pbx.example", "")),
        ('"" <sip:@pbx.example> ;tag=a', ("sip:pbx.example", "")),
        ("<sip:+49 30 111@pbx.example;user=phone>;tag=a", ("+4930111", "")),
        ('""unknown"" <sip:+4930111@pbx.example>;tag=a', ("+4930111", "unknown")),
        ("Lee, Ann <sip:+4930111@pbx.example>;tag=a", ("+4930111", "Lee, Ann")),
    ],
)
def test_an_odd_from_is_read_and_its_call_accepted(value: str, caller: tuple[str, str]) -> None:
    invite = request()
    read = parse(replace(invite, headers=invite.headers.replace("From", value)).serialise())
    assert isinstance(read, Request) and read.from_.tag == "a"
    found = caller_of(read, [])
    assert (found.from_, found.name) == caller


@pytest.mark.parametrize(
    ("headers", "forwarded_from"),
    [
        ([("Diversion", "<sip:+1@c>;reason=unconditional, <sip:+2@c>;reason=no-answer")], "+1"),
        ([("Diversion", "<<"), ("Diversion", "<tel:+2>;counter=1")], "+2"),
        ([("History-Info", "<sip:+1@c>;index=1, <sip:bot@c;cause=302>;index=1.1")], "+1"),
        ([("History-Info", "<sip:+1@c>;index=1"), ("History-Info", "<sip:bot@c>;index=1.1;mp=1")], "+1"),
        ([("History-Info", "<sip:+1@c?Reason=SIP%3Bcause%3D302>;index=1,<sip:bot@c>;index=1.1")], "+1"),
        ([("History-Info", "<sip:+1@c>;index=1,<sip:+2@c;cause=486>;index=2,<sip:bot@c;cause=408>;index=3")], "+2"),
        ([("History-Info", "<sip:+1@c>;index=1,<sip:bot@c;cause=302>;index=1.1,<sip:bot@d>;index=1.1.1")], "+1"),
        ([("History-Info", "<sip:+1@c>;index=1, <sip:bot@c>;index=1.1")], "+1"),
        ([("History-Info", "<sip:bot@c>;index=1")], ""),
        ([("History-Info", "<<")], ""),
        ([("Diversion", "<sip:+1@c>"), ("History-Info", "<sip:+2@c>;index=1,<sip:bot@c;cause=302>;index=1.1")], "+1"),
        ([], ""),
    ],
)  # fmt: skip
def test_the_party_that_forwarded_the_call(headers: list[tuple[str, str]], forwarded_from: str) -> None:
    assert caller_of(request(headers=tuple(headers)), []).forwarded_from == forwarded_from


@pytest.mark.parametrize(
    ("did_from", "uri", "to", "named", "called"),
    [
        ("auto", "sip:2000@h", "<sip:+4930999@c>", None, "2000"),
        ("auto", "sip:account@h:5060", "<sip:+4930999@c>", None, "+4930999"),
        ("auto", "sip:account@h", "<tel:+4930999>", None, "+4930999"),
        ("auto", "sip:h:5060;transport=tcp", "<sip:+4930999@c>", None, "+4930999"),
        ("auto", "sip:h", "<sip:c>", None, "sip:h"),
        ("auto", "sip:account@h", "<sip:account@c>", "<sip:+4930777@c>", "+4930777"),
        ("auto", "sip:2000@h", "<sip:+4930999@c>", "<tel:+4930777>", "+4930777"),
        ("auto", "sip:account@h", "<sip:+4930999@c>", "<<", "+4930999"),
        ("to", "sip:2000@h", "<sip:+4930999@c>", "<sip:+4930777@c>", "+4930999"),
        ("request_uri", "sip:account@h", "<sip:+4930999@c>", "<sip:+4930777@c>", "account"),
        ("p_called_party_id", "sip:account@h", "<sip:+4930999@c>", "<sip:+4930777@c>", "+4930777"),
        ("p_called_party_id", "sip:account@h", "<sip:+4930999@c>", None, "account"),
    ],
)
def test_the_called_number(did_from: DidFrom, uri: str, to: str, named: str | None, called: str) -> None:
    invite = request(headers=(("P-Called-Party-ID", named),) if named else ())
    invite = replace(invite, uri=uri, headers=invite.headers.replace("To", to))
    assert caller_of(invite, [], did_from=did_from, accounts={"account"}).to == called


def test_the_longest_number_counts() -> None:
    numbers = {"20*": "b", "2*": "a", "2000": "c", "*": "d"}
    assert [route_of(number, numbers, "none") for number in ("2000", "2001", "2", "x")] == ["c", "b", "a", "d"]
    assert route_of("3", {"2*": "a"}, "none") == "none"


@given(st.text(min_size=1, max_size=500))
def test_handed_data_comes_back(data: str) -> None:
    handed = user_to_user(data)
    assert handed == [] or read_user_to_user(handed[0][1]) == plain(data.encode("utf-8", "replace").decode())


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ("68656c6c6f;encoding=hex", "hello"),
        ("68656C6C6F", "hello"),
        ("00ff;encoding=hex;purpose=isdn-uui", "00ff"),
        ("plain text", "plain text"),
        ('"quoted";encoding=ascii', "quoted"),
    ],
)
def test_user_to_user_of_others(value: str, data: str) -> None:
    assert read_user_to_user(value) == data


def test_data_too_long_for_a_header_is_left_out() -> None:
    assert user_to_user("x" * 3000) == [] and user_to_user("") == []


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("P-Asserted-Identity", "<sip:+15550100@carrier.example;user=phone;verstat=TN-Validation-Passed>")],
         {"verstat": "TN-Validation-Passed"}),
        ([("P-Asserted-Identity", "<sip:+15550100;verstat=TN-Validation-Passed@carrier.example;user=phone>")],
         {"verstat": "TN-Validation-Passed"}),
        ([("P-Asserted-Identity", "<tel:+15550100;verstat=No-TN-Validation>")], {"verstat": "No-TN-Validation"}),
        ([("P-Asserted-Identity", "<tel:+15550100;npdi;VERSTAT=TN-Validation-Failed>")],
         {"verstat": "TN-Validation-Failed"}),
        ([("P-Asserted-Identity", "<sip:a@b>"), ("P-Asserted-Identity", "<tel:+1;verstat=TN-Validation-Passed-A>")],
         {"verstat": "TN-Validation-Passed-A"}),
        ([("From", "<sip:+15550100@carrier.example;verstat=TN-Validation-Failed>;tag=1")],
         {"verstat": "TN-Validation-Failed"}),
        ([("From", "<sip:+15550100@carrier.example>;tag=1;verstat=TN-Validation-Passed")],
         {"verstat": "TN-Validation-Passed"}),
        ([("From", "<tel:+1;verstat=TN-Validation-Failed>;tag=1"),
          ("P-Asserted-Identity", "<tel:+1;verstat=TN-Validation-Passed>")], {"verstat": "TN-Validation-Passed"}),
        ([("Identity", "eyJh.eyJi.c2ln;info=<https://cert.example/a.pem>;alg=ES256;ppt=shaken")],
         {"Identity": "eyJh.eyJi.c2ln;info=<https://cert.example/a.pem>;alg=ES256;ppt=shaken"}),
        ([("Identity", "a.b.c;info=<https://x>"), ("Identity", "d.e.f;info=<https://y>;ppt=div")],
         {"Identity": "a.b.c;info=<https://x>, d.e.f;info=<https://y>;ppt=div"}),
        ([("P-Asserted-Identity", "<tel:+1;verstat>")], {}),
        ([("P-Asserted-Identity", "<nonsense")], {}),
        ([], {}),
    ],
)  # fmt: skip
def test_what_the_network_says_of_the_number_is_passed_on(
    headers: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    """3GPP TS 24.229 section 7.2A.20, RFC 8224."""
    invite = request(headers=())
    for name, value in headers:
        kept = [each for each in invite.headers if each[0] != "From" or name != "From"]
        invite = Request("INVITE", invite.uri, Headers([*kept, (name, value)]))
    assert dict(caller_of(invite, ["X-*"]).parameters) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("Referred-By", "<sip:+4930222@pbx.example>")], "+4930222"),
        ([("Referred-By", "<sip:+4930222@pbx.example>"), ("Diversion", "<sip:+4930333@pbx.example>")], "+4930333"),
        ([("Referred-By", "<nonsense")], ""),
    ],
)
def test_who_transferred_the_call_counts_as_who_forwarded_it(headers: list[tuple[str, str]], expected: str) -> None:
    assert caller_of(request(headers=tuple(headers)), []).forwarded_from == expected
