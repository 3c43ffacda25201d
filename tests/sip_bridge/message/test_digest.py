"""Digest: the RFCs' own vectors, and our two halves against each other."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens import Tokens
from sip_bridge.errors import SipProtocolError
from sip_bridge.message.digest import ClientAuth, DigestVerdict, ServerAuth, is_stale, parse_auth

URI = "sip:example.com"
SERVER = ServerAuth("example", b"sixteen bytes ok")
PASSWORDS = {"ann": "secret", "bob": ""}


def verdict(credentials: str | None, *, now: float = 1000.0, method: str = "INVITE", uri: str = URI) -> DigestVerdict:
    fresh = ServerAuth(SERVER.realm, SERVER.secret)  # has seen no credentials
    return fresh.check([credentials] if credentials else [], PASSWORDS, method=method, uri=uri, now=now)[0]


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_rfc_7616_section_3_9_1(algorithm: str, response: str) -> None:
    challenge = (
        'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm=' + algorithm + ", "
        'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
    )
    answer = ClientAuth("Mufasa", "Circle of Life").answer(
        [challenge], method="GET", uri="/dir/index.html", cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    )
    assert answer is not None
    assert parse_auth(answer)[1]["response"] == response
    assert "qop=auth," in answer and "nc=00000001," in answer and f"algorithm={algorithm}" in answer


def test_rfc_2617_without_qop() -> None:
    """The example of RFC 2617 section 3.5 without its qop, worked out with md5sum."""
    challenge = 'Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093"'
    answer = ClientAuth("Mufasa", "Circle Of Life").answer([challenge], method="GET", uri="/dir/index.html", cnonce="c")
    assert answer is not None
    assert parse_auth(answer)[1]["response"] == "670fd8c2df070c60b045671b8b24ff02"
    assert "cnonce" not in answer


def test_accepts_our_own_answer_to_each_algorithm() -> None:
    server = ServerAuth(SERVER.realm, SERVER.secret)
    for challenge in server.challenges(now=1000.0):
        client = ClientAuth("ann", "secret")
        for uses in (1, 2):
            answer = client.answer([challenge], method="INVITE", uri=URI, cnonce="c")
            assert answer and f"nc={uses:08x}" in answer
            assert server.check([answer], PASSWORDS, method="INVITE", uri=URI, now=1001.0) == (
                DigestVerdict.GOOD,
                "ann",
            )


def test_verdicts() -> None:
    challenges = SERVER.challenges(now=1000.0)
    good = ClientAuth("ann", "secret").answer(challenges, method="INVITE", uri=URI, cnonce="c")
    assert good and "algorithm=SHA-256" in good
    assert verdict(good) is DigestVerdict.GOOD
    assert verdict(good, now=1299.0) is DigestVerdict.GOOD
    assert verdict(good, now=1301.0) is DigestVerdict.STALE
    assert verdict(good, now=990.0) is DigestVerdict.STALE
    assert verdict(good, method="BYE") is DigestVerdict.WRONG
    assert verdict(good, uri="sip:other") is DigestVerdict.WRONG
    assert verdict(None) is DigestVerdict.ABSENT
    assert verdict("Basic dTpw") is DigestVerdict.ABSENT
    assert verdict(good.replace('realm="example"', 'realm="other"')) is DigestVerdict.ABSENT
    for user, password in (("ann", "guess"), ("eve", "secret"), ("eve", "")):
        wrong = ClientAuth(user, password).answer(challenges, method="INVITE", uri=URI, cnonce="c")
        assert verdict(wrong) is DigestVerdict.WRONG


def test_a_nonce_that_we_did_not_make_is_stale_even_with_the_right_password() -> None:
    forged = ServerAuth("example", b"another secret!!").challenges(now=1000.0)
    assert (
        verdict(ClientAuth("ann", "secret").answer(forged, method="INVITE", uri=URI, cnonce="c")) is DigestVerdict.STALE
    )


def test_stale_is_told() -> None:
    assert [is_stale(challenge) for challenge in SERVER.challenges(now=1.0, stale=True)] == [True, True]
    assert not is_stale(SERVER.challenges(now=1.0)[0])


def test_takes_the_first_challenge_that_it_can_answer() -> None:
    client = ClientAuth("ann", "secret", realm="b")
    challenges = [
        "Digest broken",
        "Basic realm=b",
        'Digest realm="b", nonce="1", algorithm=SHA-512-256',
        'Digest realm="b", nonce="2", qop="auth-int"',
        'Digest realm="a", nonce="3"',
        'Digest realm="b", nonce="4"',
    ]
    answer = client.answer(challenges, method="BYE", uri=URI, cnonce="c")
    assert answer and 'nonce="4"' in answer
    assert client.answer(challenges[:-1], method="BYE", uri=URI, cnonce="c") is None


@pytest.mark.parametrize(
    "text",
    [
        "Digest x",
        'Digest realm="example", realm="example"',
        'Digest realm="example", username="ann"',
        'Digest realm="example", username="a", nonce="n", uri="u", response="r", qop=auth',
    ],
)
def test_unreadable_credentials(text: str) -> None:
    with pytest.raises(SipProtocolError):
        verdict(text)


@given(st.text(max_size=80))
def test_garbage_raises_only_protocol_error(text: str) -> None:
    for value in (text, "Digest " + text, 'Digest realm="example", ' + text):
        try:
            verdict(value)
        except SipProtocolError:
            pass
    ClientAuth("ann", "secret").answer(["Digest " + text], method="BYE", uri=URI, cnonce="c")


def test_short_secret() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        ServerAuth("example", b"abc")


@pytest.mark.parametrize(
    ("named", "asked", "dialled", "good"),
    [
        ("sip:bot@pbx.example", "sip:bot@pbx.example:5060", "", True),
        ("sip:bot@pbx.example;transport=udp", "sip:bot@PBX.example", "", True),
        ("sip:bot@pbx.example", "sip:bot@10.0.0.1:5070;transport=tcp", "", True),
        ("sip:%62ot@pbx.example", "sip:bot@pbx.example", "", True),
        ("sip:030111@office.example", "sip:+4930111@10.0.0.1", "sip:030111@office.example", True),
        ("tel:+49-30-111", "sip:+4930111@10.0.0.1;user=phone", "", True),
        ("sip:pbx.example:5060", "sip:pbx.example", "", True),
        ("sip:other@pbx.example", "sip:bot@pbx.example", "sip:bot@pbx.example", False),
        ("sip:BOT@pbx.example", "sip:bot@pbx.example", "", False),
        ("sip:pbx.example", "sip:other.example", "", False),
        ("sip:pbx.example", "sip:bot@pbx.example", "", True),  # the domain alone
        ("pbx.example", "sip:bot@10.0.0.1", "sip:bot@pbx.example", True),
        ("sip:pbx.example", "sip:bot@other.example", "sip:bot@other.example", False),
        ("sip:4930111@pbx.example", "sip:+4930111@10.0.0.1", "", True),
        ("sip:004930111@pbx.example", "sip:+4930111@10.0.0.1", "", True),
        ("sip:4930112@pbx.example", "sip:+4930111@10.0.0.1", "", False),
        ("<sip:bot@pbx.example>", "sip:bot@pbx.example", "", True),
        ("bot@pbx.example", "sip:bot@10.0.0.1", "", True),
        ("sip:+49-30-111@pbx.example", "sip:+4930111@10.0.0.1;user=phone", "", True),
        ("<bad>", "sip:bot@pbx.example", "", False),
        ("*", "sip:bot@pbx.example", "", False),
    ],
)
def test_credentials_name_the_target_as_dialled_or_as_asked(named: str, asked: str, dialled: str, good: bool) -> None:
    """RFC 3261 sections 19.1.4 and 22.4."""
    challenges = SERVER.challenges(now=1000.0)
    answer = ClientAuth("ann", "secret").answer(challenges, method="INVITE", uri=named, cnonce="c")
    assert answer
    judged, _ = ServerAuth(SERVER.realm, SERVER.secret).check(
        [answer], PASSWORDS, method="INVITE", uri=asked, now=1000.0, dialled=dialled
    )
    assert (judged is DigestVerdict.GOOD) == good


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Digest ", "DIGEST\t"),
        ("qop=auth", 'qop="auth"'),
        ("algorithm=MD5", 'algorithm="md5"'),
        (", ", ",\t"),
        ("nc=", "NC = "),
    ],
)
def test_credentials_in_another_form(old: str, new: str) -> None:
    answer = ClientAuth("ann", "secret").answer(SERVER.challenges(now=1000.0)[1:], method="INVITE", uri=URI, cnonce="c")
    assert answer and old in answer
    judged, _ = ServerAuth(SERVER.realm, SERVER.secret).check(
        [answer.replace(old, new)], PASSWORDS, method="INVITE", uri=URI, now=1000.0
    )
    assert judged is DigestVerdict.GOOD


def test_of_two_challenges_in_one_header_the_first_that_can_be_is_answered() -> None:
    challenge = 'Digest realm="a, b", nonce="1", algorithm=SHA-512-256, Digest realm="a, b",nonce="2", qop="auth"'
    answer = ClientAuth("ann", "secret").answer([challenge], method="REGISTER", uri=URI, cnonce="c")
    assert answer and 'nonce="2"' in answer and 'realm="a, b"' in answer


@pytest.mark.parametrize("qop", [True, False])
def test_credentials_are_good_once(qop: bool) -> None:
    server, client = ServerAuth(SERVER.realm, SERVER.secret), ClientAuth("ann", "secret")
    challenges = [c if qop else c.replace(', qop="auth"', "") for c in server.challenges(now=1000.0)]

    def judged(credentials: str | None) -> DigestVerdict:
        return server.check([credentials or ""], PASSWORDS, method="INVITE", uri=URI, now=1001.0)[0]

    first, second = (client.answer(challenges, method="INVITE", uri=URI, cnonce="c") for _ in range(2))
    assert judged(first) is DigestVerdict.GOOD
    assert judged(first) is DigestVerdict.STALE  # a copy
    assert judged(second) is (DigestVerdict.GOOD if qop else DigestVerdict.STALE)
    assert judged(first) is DigestVerdict.STALE  # a count that does not grow
    again = ClientAuth("ann", "secret").answer(server.challenges(now=1000.5), method="INVITE", uri=URI, cnonce="c")
    assert judged(again) is DigestVerdict.GOOD
    if qop:  # a client that counts from one with a client nonce of its own
        other = ClientAuth("ann", "secret").answer(challenges, method="INVITE", uri=URI, cnonce="d")
        assert judged(other) is DigestVerdict.GOOD


@pytest.mark.parametrize(
    ("qop", "change"),
    [
        (True, lambda text: text.replace(", algorithm=SHA-256", ", algorithm=sha-256")),
        (True, lambda text: text.replace(", algorithm=MD5", "")),
        (True, lambda text: text.replace("Digest ", "DIGEST  ")),
        (True, lambda text: text.replace("uri=", 'opaque="x", uri=')),
        (False, lambda text: text.replace(", algorithm=MD5", "")),
        (False, lambda text: text + ', cnonce="another"'),
        (False, lambda text: text + ", nc=00000009"),
        (False, lambda text: text + ', nc=00000009, cnonce="another"'),
    ],
)
@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
def test_copied_credentials_with_other_words_that_the_response_does_not_cover_are_stale(
    algorithm: str, qop: bool, change: Callable[[str], str]
) -> None:
    server = ServerAuth(SERVER.realm, SERVER.secret)
    challenges = [text for text in server.challenges(now=1000.0) if f"algorithm={algorithm}" in text]
    challenges = [text if qop else text.replace(', qop="auth"', "") for text in challenges]
    copied = ClientAuth("ann", "secret").answer(challenges, method="INVITE", uri=URI, cnonce="c")
    assert copied is not None

    def judged(credentials: str) -> DigestVerdict:
        return server.check([credentials], PASSWORDS, method="INVITE", uri=URI, now=1001.0)[0]

    assert judged(copied) is DigestVerdict.GOOD
    assert judged(change(copied)) is DigestVerdict.STALE


def test_credentials_that_were_good_at_one_worker_are_stale_at_another() -> None:
    tokens = Tokens("of all workers", lifetime_s=60)
    one, two = (ServerAuth("example", tokens.nonce_key(worker)) for worker in range(2))
    client = ClientAuth("ann", "secret")
    copied = client.answer(one.challenges(now=1000.0), method="INVITE", uri=URI, cnonce="c")

    def judged(server: ServerAuth, credentials: str | None) -> DigestVerdict:
        return server.check([credentials or ""], PASSWORDS, method="INVITE", uri=URI, now=1001.0)[0]

    assert judged(one, copied) is DigestVerdict.GOOD
    assert judged(two, copied) is DigestVerdict.STALE, "a copy with another Call-ID, so at another worker"
    again = client.answer(two.challenges(now=1001.0, stale=True), method="INVITE", uri=URI, cnonce="d")
    assert judged(two, again) is DigestVerdict.GOOD


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0])
def test_after_a_step_of_the_clock_a_peer_is_challenged_once_more_and_let_in(step_s: float) -> None:
    server, client = ServerAuth(SERVER.realm, SERVER.secret), ClientAuth("ann", "secret")

    def judged(challenges: list[str], now: float) -> DigestVerdict:
        credentials = client.answer(challenges, method="INVITE", uri=URI, cnonce="c")
        return server.check([credentials or ""], PASSWORDS, method="INVITE", uri=URI, now=now)[0]

    before, after = 1_700_000_000.0, 1_700_000_000.0 + step_s
    challenges = server.challenges(now=before)
    assert judged(challenges, before) is DigestVerdict.GOOD
    assert judged(challenges, after) is DigestVerdict.STALE
    assert judged(server.challenges(now=after, stale=True), after) is DigestVerdict.GOOD
