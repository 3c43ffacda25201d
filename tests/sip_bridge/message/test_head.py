import pytest

from sip_bridge.message.head import Head, read_head

LINES = [
    "BYE sip:bot@192.0.2.9 SIP/2.0",
    "Via: SIP/2.0/UDP 192.0.2.4;branch=z9hG4bK-theirs",
    "To: <sip:bot@example.com>;tag=w01-1234",
    "Call-ID: one@192.0.2.4",
]


def test_a_request_in_a_dialog_says_which() -> None:
    assert read_head("\r\n".join(LINES).encode()) == Head("BYE", "one@192.0.2.4", "w01-1234")


@pytest.mark.parametrize(
    "to",
    [
        't: "A name, <with> ;tag=no" <sip:bot@example.com;tag=no>;x=y; TAG = w01-1234',
        "to : sip:bot@example.com;tag=w01-1234",
        "To: <sip:bot@example.com>\r\n ;tag=w01-1234",
        "To: <sip:bot@example.com>;tag=w01-1234;tag=no",
    ],
)
def test_a_tag_is_found_however_it_is_written(to: str) -> None:
    lines = [LINES[0], to, "i: one@192.0.2.4", "", "To: <sip:x>;tag=body"]
    for end in ("\r\n", "\n"):
        assert read_head(end.join(lines).replace("\r\n ", end + " ").encode()) == Head(
            "BYE", "one@192.0.2.4", "w01-1234"
        )


def test_a_response_is_known_by_its_topmost_branch() -> None:
    lines = [
        "SIP/2.0 200 OK",
        "v: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bKw02-aa, SIP/2.0/UDP 192.0.2.4;branch=theirs",
        "Via: SIP/2.0/UDP 192.0.2.5;branch=third",
        "To: <sip:ann@example.com>;tag=theirs",
        "Call-ID: two",
    ]
    assert read_head("\r\n".join(lines).encode()) == Head("", "two", "z9hG4bKw02-aa")


@pytest.mark.parametrize("to", ["To: ", "To: <sip:bot@example.com", "To: ;;tag=w01-x", "To:<sip:bot@example.com>"])
def test_what_cannot_be_read_names_nobody(to: str) -> None:
    assert read_head(f"OPTIONS sip:a SIP/2.0\r\n{to}\r\n\r\n".encode()) == Head("OPTIONS", "", "")


def test_what_is_no_sip_is_none() -> None:
    for data in (b"", b"\r\n\r\n", b"hello", b"GET / HTTP/1.1\r\n\r\n", b"BYE sip:a SIP/2.0\r\nX: " + b"y" * 70_000):
        assert read_head(data) is None


@pytest.mark.parametrize(
    ("method", "to", "replaces", "replaced"),
    [
        ("INVITE", "<sip:a@b>", "one@b;from-tag=2;to-tag=w03-77", "w03-77"),
        ("INVITE", "<sip:a@b>", "one@b; to-tag = w03-77 ;from-tag=2", "w03-77"),
        ("INVITE", "<sip:a@b>;tag=w01-1", "one@b;to-tag=w03-77;from-tag=2", ""),
        ("BYE", "<sip:a@b>", "one@b;to-tag=w03-77;from-tag=2", ""),
        ("INVITE", "<sip:a@b>", "one@b", ""),
    ],
)
def test_the_dialog_that_an_invite_replaces_names_its_worker(
    method: str, to: str, replaces: str, replaced: str
) -> None:
    head = read_head(f"{method} sip:a@b SIP/2.0\r\nTo: {to}\r\nReplaces: {replaces}\r\n\r\n".encode())
    assert head is not None and head.replaced == replaced
