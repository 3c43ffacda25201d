"""No message stops the loop: the time to read a hostile one grows no faster than its length."""

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest

from sip_bridge.errors import SipProtocolError
from sip_bridge.message import sdp
from sip_bridge.message.digest import parse_auth
from sip_bridge.message.sip import Address, CSeq, MessageStream, Uri, Via, parse, parse_params, split_list
from tests.sip_bridge.sip_messages import request

OPTIONS = request("OPTIONS").serialise().removesuffix(b"Content-Length: 0\r\n\r\n")


def stream(data: bytes) -> None:
    list(MessageStream().feed(data))


def dripped(data: bytes) -> None:
    """In pieces of 64 bytes."""
    cut = MessageStream()
    for at in range(0, len(data), 64):
        list(cut.feed(data[at : at + 64]))


def with_header(line: bytes) -> bytes:
    return OPTIONS + line + b"\r\n\r\n"


def description(line: str) -> bytes:
    head = "v=0\r\no=a 1 1 IN IP4 127.0.0.1\r\nc=IN IP4 127.0.0.1\r\n"
    return (head + line).encode()


Case = tuple[Callable[..., object], Callable[[int], bytes | str]]

CASES: dict[str, Case] = {
    "blanks in the start line": (parse, lambda n: b"OPTIONS x" + b" " * n + b"y\r\n\r\n"),
    "tabs in the start line": (parse, lambda n: b"OPTIONS x" + b"\t" * n + b" SIP/2.0 y\r\n\r\n"),
    "blanks in a status line": (parse, lambda n: b"SIP/2.0" + b" " * n + b"20\r\n\r\n"),
    "digits of the version": (parse, lambda n: b"OPTIONS x SIP/" + b"1" * n + b"\r\n\r\n"),
    "blanks in a Via of a message": (parse, lambda n: OPTIONS.replace(b"UDP ", b"UDP h" + b" " * n) + b"\r\n\r\n"),
    "folded lines": (parse, lambda n: with_header(b"X: a" + b"\r\n b" * (n // 4))),
    "one long list": (parse, lambda n: with_header(b"Record-Route: " + b"<a>," * (n // 4))),
    "many lists": (parse, lambda n: with_header(b"\r\n".join([b"Via: " + b"a," * (n // 200)] * 100))),
    "headers": (parse, lambda n: with_header(b"\r\n".join([b"a:b"] * (n // 5)))),
    "line ends": (parse, lambda n: OPTIONS + b"\r\n \r" * (n // 4)),
    "blanks in a Via": (Via.parse, lambda n: "SIP/2.0/UDP h" + " " * n + "x y"),
    "blanks around the protocol of a Via": (Via.parse, lambda n: "SIP" + " " * n + "/2.0/" + " " * n),
    "slashes in a Via": (Via.parse, lambda n: "SIP/2.0/" + "/" * n),
    "backslashes in a name": (Address.parse, lambda n: '"' + "\\" * n + " <sip:a@b>"),
    "quotes in a name": (Address.parse, lambda n: '"' * n + "<sip:a@b>"),
    "brackets of an address": (Address.parse, lambda n: "<" * n + "sip:a@b"),
    "blanks in an address": (Address.parse, lambda n: "a" + " " * n + "<sip:a@b>" + " " * n + "x"),
    "parameters of an address": (Address.parse, lambda n: "<sip:a@b>" + ";a" * (n // 2)),
    "ats in a URI": (Uri.parse, lambda n: "sip:" + "@" * n),
    "a long host": (Uri.parse, lambda n: "sip:a@" + "b." * (n // 2) + "!"),
    "a long scheme": (Uri.parse, lambda n: "s" * n + "!:x"),
    "blanks in CSeq": (CSeq.parse, lambda n: "1" + " " * n + "BYE x"),
    "separators": (split_list, lambda n: "," * n),
    "open quotes and brackets": (split_list, lambda n: '"<,' * (n // 3)),
    "equal parameters": (parse_params, lambda n: ";a=1" * (n // 4)),
    "credentials": (parse_auth, lambda n: "Digest " + 'a="\\", ' * (n // 7)),
    "blanks behind a Content-Length": (stream, lambda n: b"O x SIP/2.0\r\nl:" + b" " * n + b"x y\r\n\r\n"),
    "blanks before its colon": (stream, lambda n: b"O x SIP/2.0\r\nl" + b" " * n + b"x\r\n\r\n"),
    "its folded lines": (stream, lambda n: b"O x SIP/2.0\r\nl:" + b"\r\n " * (n // 3) + b"x y\r\n\r\n"),
    "a stream of tiny messages": (stream, lambda n: b"a\n\n" * (n // 3)),
    "a stream of line ends": (stream, lambda n: b"\r\n" * (n // 2)),
    "headers in small pieces": (dripped, lambda n: b"O x SIP/2.0\r\nX: " + b"a" * n),
    "a body in small pieces": (dripped, lambda n: b"O x SIP/2.0\r\nl: 99999\r\n\r\n" + b"a" * n),
    "attributes": (sdp.parse, lambda n: description("a=b:c\r\n" * (n // 28))),
    "blanks in an address line": (sdp.parse, lambda n: description("c=IN IP4" + " " * (n // 4) + "x y")),
    "formats and their maps": (
        sdp.parse,
        lambda n: description(f"m=audio 9 RTP/AVP {'97 ' * 64}\r\n" + "a=rtpmap:97 x/8000\r\n" * (n // 80)),
    ),
    "a long key": (sdp.parse, lambda n: description("m=audio 9 RTP/AVP 0\r\na=crypto:1 x inline:" + "A" * (n // 4))),
}
"""Each reader with a text that is hard to read; its length grows with n."""


def cpu_s(read: Callable[..., object], data: bytes | str, repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        try:
            read(data)
        except SipProtocolError:
            pass
    return (time.process_time() - started) / repeats


@pytest.mark.parametrize(("read", "text"), CASES.values(), ids=CASES.keys())
def test_time_grows_no_faster_than_the_length(read: Callable[..., object], text: Callable[[int], bytes | str]) -> None:
    """From 8 to 32 kB (a session description: a quarter of that, for it may have 16) by two doublings: linear is a
    factor of 4, quadratic 16. A larger ratio is measured again, so a moment in which the machine did something else
    fails nothing."""
    short, long = text(8_000), text(32_000)
    repeats = 1 + int(0.005 / max(cpu_s(read, short, 1), 1e-6))  # below that the clock's own noise would count
    ratios: list[float] = []
    gc.disable()
    try:
        while len(ratios) < 10:
            ratios.append(cpu_s(read, long, repeats) / cpu_s(read, short, repeats))
            if ratios[-1] <= 2.5**2:
                return
    finally:
        gc.enable()
    pytest.fail(f"four times the length took {', '.join(f'{ratio:.1f}' for ratio in ratios)} times as long")


@pytest.mark.parametrize(("read", "text"), CASES.values(), ids=CASES.keys())
def test_little_room_is_taken_to_read(read: Callable[..., object], text: Callable[[int], bytes | str]) -> None:
    """A pattern keeps what it might try again. The room for it comes and goes, and costs more than the reading."""
    data = text(32_000)
    cpu_s(read, text(100), 1)  # what is kept for good
    tracemalloc.start()
    try:
        cpu_s(read, data, 1)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line", [b"a:b\r\n", b"a:b\n", b"a:b\r", b" b\r\n"])
def test_a_message_of_very_many_lines_is_refused_before_they_are_read(line: bytes) -> None:
    with pytest.raises(SipProtocolError, match=r"20\d\d lines before its body, expected at most 1024") as refused:
        parse(OPTIONS + b"P-A: y\r\n" + line * 2000 + b"\r\n")
    assert refused.value.status == 513


def test_as_many_headers_as_may_be_may_be_folded() -> None:
    headers = parse(OPTIONS + b"P-A: y\r\n z\r\n" * 200 + b"\r\n").headers
    assert list(headers.all("P-A")) == ["y z"] * 200
