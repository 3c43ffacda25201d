"""One form for every spelling of a target, and patterns that no spelling gets past."""

import re
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.calling.targets import Patterns, read_target
from gateway.errors import ProtocolError

PREFIXES = ("00",)


@pytest.mark.parametrize(
    ("text", "dialled", "kind"),
    [
        ("+4930123", "+4930123", "an international number"),
        (" +49 (30) 123-45.67 ", "+49301234567", "an international number"),
        ("0049 30 123", "+4930123", "an international number"),
        ("tel:+49-30-123", "+4930123", "an international number"),
        ("TEL:%2B4930123", "+4930123", "an international number"),
        ("%2B4930123", "+4930123", "an international number"),
        ("%30%304930123", "+4930123", "an international number"),
        ("030 123", "030123", "a national number"),
        ("7201", "7201", "a national number"),
        ("*21#", "*21#", "a service code"),
        ("agent-7", "agent-7", "a name"),
        ("sip:ann@192.0.2.1", "sip:ann@192.0.2.1", "a SIP address"),
        ("SIPS:Ann@PBX.example:5062;transport=TCP", "sips:Ann@pbx.example:5062;transport=tcp", "a SIP address"),
        ("sip:pbx.example", "sip:pbx.example", "a SIP address"),
        ("sip:ann@[2001:DB8::1]:5070", "sip:ann@[2001:db8::1]:5070", "a SIP address"),
        ("sip:%2B49-30-12@pbx.example;user=phone", "sip:+493012@pbx.example;user=phone", "a SIP address"),
        ("sip:0049.30@pbx.example;user=phone", "sip:+4930@pbx.example;user=phone", "a SIP address"),
        ("sip:00@pbx.example", None, ""),
        ("sip:a%23b@pbx.example", "sip:a%23b@pbx.example", "a SIP address"),
        ("+49301,,7", "+49301,,7", "an international number"),
        ("tel:+49301;ext=7", "+49301;ext=7", "an international number"),
    ],
)
def test_one_form_is_dialled(text: str, dialled: str | None, kind: str) -> None:
    if dialled is None:
        with pytest.raises(ProtocolError):
            read_target(text, PREFIXES)
        return
    target = read_target(text, PREFIXES)
    assert (str(target), target.kind) == (dialled, kind)
    assert str(read_target(dialled, PREFIXES)) == dialled, "the form is its own form"


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "00", "-", "tel:", "sip:", "sip:@pbx.example", "http://example.org", "mailto:a@b", "99:1",
        "+0882161", "000882161", "++4930", "4930+1", "+4930123456789012", "%252B4930", "+49\u0663\u0660", "\uff0b4930",
        "+49\u200b30", "+49\n30", "+4930&PJSIP/evil", "+4930/evil", "+4930,evil", "tel:+49;phone-context=evil",
        "tel:agent-7", "7001-sales", "-agent", "agent 7", "${EXTEN}", "a@b", "sip:a@b@c", "sip:a b@pbx.example",
        "sip:a:secret@pbx.example", "sip:a@pbx.example?Route=%3Csip:evil%3E", "sip:a@pbx.example;maddr=192.0.2.66",
        "sip:a@pbx.example;method=REGISTER", "sip:a;x=y@pbx.example", "sip:a%0d%0a@pbx.example",
        "sip:a@pbx.example>\r\nX", "sip:a%40evil.example@pbx.example", "sip:agent@pbx.example;user=phone",
        "sip:a@pbx_.example.", "sip:a@pbx:123456",
    ],
)  # fmt: skip
def test_what_is_no_bare_target_is_refused_without_a_digit_in_the_error(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_target(text, PREFIXES)
    assert not re.search(r"[0-9]", str(caught.value).replace("15", ""))


SEPARATORS = st.text(" ().-", max_size=3)
NUMBERS = st.from_regex(r"[1-9][0-9]{4,13}", fullmatch=True)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """An international number, and one of its spellings."""
    number = draw(NUMBERS)
    spelt = draw(st.sampled_from(["+", "00", "0-0", "(00)", "+ "])) + "".join(d + draw(SEPARATORS) for d in number)
    if draw(st.booleans()):
        escaped = draw(st.sets(st.integers(0, len(spelt) - 1)))
        spelt = "".join(f"%{ord(c):02x}" if i in escaped else c for i, c in enumerate(spelt))
    scheme = draw(st.sampled_from(["", "", "tel:", "TEL:", "sip"]))
    if scheme == "sip":
        return f"+{number}", f"sip:{quote(spelt, safe='%')}@pbx.example" + draw(st.sampled_from(["", ";user=phone"]))
    return f"+{number}", draw(st.sampled_from(["", " "])) + scheme + spelt


@settings(max_examples=100, deadline=None)
@given(spellings())
def test_no_spelling_of_a_number_gets_past_a_pattern(case: tuple[str, str]) -> None:
    number, spelt = case
    if spelt.startswith("sip:") and "user=phone" not in spelt and " " in spelt.replace("%20", " "):
        return  # a blank is no part of a user
    try:
        target = read_target(spelt, PREFIXES)
    except ProtocolError:
        assert spelt.startswith("sip:")  # a user of a SIP address may not have every separator
        return
    assert Patterns([f"{number[:4]}*"], PREFIXES).match(target.aliases("")), "denied, however it is spelt"
    assert not Patterns([f"{number}1*"], PREFIXES).match(target.names("pbx.example"))
    if target.scheme:
        assert not Patterns([number]).match(target.names("")), "a number pattern allows no address elsewhere"
    else:
        assert str(target) == number


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("+0123456789*#%,;wx@:/.-() siptel\n\u0660"), max_size=24))
def test_reading_is_idempotent_and_fails_in_one_way_only(text: str) -> None:
    try:
        target = read_target(text, PREFIXES)
    except ProtocolError:
        return
    assert read_target(str(target), PREFIXES) == target


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("+4930*", ["+4930123", "+4930", "0049 30 1"],
         ["+4940123", "4930123", "sip:+4930123@evil.example"]),
        ("0049*", ["+4930"], ["049"]),
        ("+49 (30) 1-*", ["+49301"], ["+4930"]),
        ("7*", ["7", "7201"], ["8", "+7201"]),
        ("*", ["7", "+49301", "agent-7"], ["*21#", "7#", "sip:a@pbx.example", "sip:pbx.example"]),
        ("%2A21#", ["*21#"], ["21#", "121#", "*21#1"]),
        ("agent-*", ["agent-7"], ["agent", "Agent-7", "sip:agent-7@pbx.example"]),
        ("sip:+4930*@pbx.example", ["sip:+4930123@pbx.example", "sip:+4930@PBX.example:5070"],
         ["sip:+494@pbx.example"]),
        ("*@pbx.example", ["sip:a@pbx.example", "sip:+1@pbx.example"],
         ["sip:a@pbx.example.evil", "sip:a@xpbx.example", "sip:pbx.example", "agent"]),
        ("*@pbx.example:5070", ["sip:a@pbx.example:5070"], ["sip:a@pbx.example", "sip:a@pbx.example:5071"]),
        ("100@*", ["sip:100@192.0.2.1", "sip:100@pbx.example:5080"], ["sip:1000@192.0.2.1", "sip:x100@192.0.2.1"]),
        ("sip:pbx.example", ["sip:pbx.example"], ["sip:a@pbx.example", "pbx.example"]),
        ("pbx.example", ["pbx.example"], ["sip:pbx.example", "sip:a@pbx.example"]),
        ("a.b@pbx.example", ["sip:a.b@pbx.example"], ["sip:axb@pbx.example"]),
    ],
)  # fmt: skip
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    patterns = Patterns([pattern], PREFIXES)

    def names(text: str) -> set[str]:
        return read_target(text, PREFIXES).names("")

    assert [text for text in allowed if not patterns.match(names(text))] == []
    assert [text for text in refused if patterns.match(names(text))] == []


def test_at_a_sip_call_a_number_is_also_a_user_of_its_domain() -> None:
    number, address = read_target("+4930123"), read_target("sip:+4930123@pbx.example:5070")
    for pattern in ("+4930*", "+4930*@pbx.example", "*@pbx.example:5070"):
        assert Patterns([pattern]).match(number.names("pbx.example:5070"))
        assert Patterns([pattern]).match(address.names("pbx.example:5070"))
    assert not Patterns(["+4930*"]).match(address.names("other.example"))


def test_nothing_is_named_by_no_pattern() -> None:
    assert not Patterns([]).match(read_target("sip:a@192.0.2.1").aliases("x"))
