"""Messages for the tests."""

from sip_bridge.message.sip import Headers, Request, Response, response_to


def request(
    method: str = "INVITE",
    *,
    branch: str = "z9hG4bK-1",
    cseq: int = 1,
    to_tag: str = "",
    from_tag: str = "theirs",
    call_id: str = "call-1",
    uri: str = "sip:bot@192.0.2.9",
    headers: tuple[tuple[str, str], ...] = (("Contact", "<sip:ann@192.0.2.4:5070>"),),
    body: bytes = b"",
) -> Request:
    """A request as a peer at 192.0.2.4 sends it."""
    items = [
        ("Via", f"SIP/2.0/UDP 192.0.2.4:5070;branch={branch};rport"),
        ("From", f"<sip:ann@example.org>;tag={from_tag}"),
        ("To", "<sip:bot@example.com>" + (f";tag={to_tag}" if to_tag else "")),
        ("Call-ID", call_id),
        ("CSeq", f"{cseq} {method}"),
        *headers,
    ]
    return Request(method, uri, Headers(items), body)


def answer(to: Request, status: int, *, to_tag: str = "ours", headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """The peer's, or our, response."""
    return response_to(to, status, to_tag=to_tag, headers=headers)
