"""Sequences of messages and times within one SIP call, ours and the peer's, from its INVITE to its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pydantic import SecretStr

from sip_bridge.config import SipTimeouts, TrunkConfig
from sip_bridge.dialog.dialog import Refusal
from sip_bridge.dialog.effects import Acknowledge, Ask, Begin, Invite, Left, Post, Respond
from sip_bridge.dialog.invite import InviteDialog, InviteState
from sip_bridge.dialog.invite_client import InviteClient
from sip_bridge.dialog.invite_server import InviteServer
from sip_bridge.dialog.transaction import key_of, server_key
from sip_bridge.errors import NotAcceptable, SipProtocolError
from sip_bridge.local import LocalAddress, Peer
from sip_bridge.message.referral import Referral
from sip_bridge.message.sip import Address, Request, Uri, parse, response_to
from tests.fuzz.target import Target, joined, parts
from tests.fuzz.targets.sip import OFFER, SECURE
from tests.fuzz.targets.sip import WORDS as SIP_WORDS

_PEER, _LOCAL = Peer("UDP", "192.0.2.4", 5070), LocalAddress("192.0.2.9", 5060)
_METHODS = ("ACK", "BYE", "INVITE", "UPDATE", "INFO", "OPTIONS", "NOTIFY", "REFER", "CANCEL", "MESSAGE")
_STATUSES = (100, 180, 183, 200, 202, 302, 401, 407, 408, 422, 481, 486, 487, 491, 500, 503, 603)
_BODIES = (b"", OFFER, SECURE, OFFER.replace(b"m=audio 4000", b"m=audio 0"), b"Signal=5\r\n", b"SIP/2.0 200 OK\r\n")
_CONTENT = ("application/sdp", "application/sdp", "application/sdp", "application/sdp", "application/dtmf-relay",
            "message/sipfrag")  # fmt: skip
_CONTACT = ("Contact", "<sip:ann@192.0.2.4:5070>")
_TRUNKS = (
    {}, {"answer_at_once": True}, {"early_media": True}, {"transfers": "follow", "answer_at_once": True},
    {"username": "bot", "password": SecretStr("secret"), "addresses": ("192.0.2.0/24",)},
)  # fmt: skip


class _Call:
    """One call's protocol, its clock, and what it has said."""

    protocol: Any

    def __init__(self, kind: int, head: bytes) -> None:
        self.now = 0.0
        self.left = 0
        self.asked: list[Request] = []
        trunk = TrunkConfig.model_validate({"addresses": ("192.0.2.0/24",)} | _TRUNKS[kind % len(_TRUNKS)])
        timeouts = SipTimeouts(session_s=90 if kind & 64 else 0)
        common = (trunk, _PEER, _LOCAL, 40000, timeouts)
        if kind & 128:
            self.protocol = InviteClient(
                *common, uri=Uri.parse("sip:ann@192.0.2.4:5070"), from_=Address.parse("<sip:bot@192.0.2.9>"), headers=[]
            )
            self.tell(self.protocol.start)
            return
        invite = self._request("INVITE", 1, head[1:], _BODIES[head[0] % len(_BODIES)] if head else OFFER)
        self.protocol = InviteServer(*common, key=server_key(invite), invite=invite)
        if isinstance(self.tell(self.protocol.start), Refusal):
            raise NotAcceptable("refused at the start")  # the bridge answers, and forgets the call
        if not self.protocol.late:
            self.tell(self.protocol.begun)
            if trunk.answer_at_once:
                self.tell(self.protocol.on_ready)

    def _request(self, method: str, number: int, headers: bytes, body: bytes, content: str = _CONTENT[0]) -> Request:
        """A request as the peer writes it; ``headers`` are lines that the case made up."""
        dialog = getattr(getattr(self, "protocol", None), "dialog", None)
        lines = [
            f"{method} sip:bot@192.0.2.9 SIP/2.0",
            f"Via: SIP/2.0/UDP 192.0.2.4:5070;branch=z9hG4bK-{method}-{number}",
            f"From: {dialog.remote if dialog else '<sip:ann@example.org>;tag=theirs'}",
            f"To: {dialog.local if dialog else '<sip:bot@example.com>'}",
            f"Call-ID: {dialog.call_id if dialog else 'one'}", f"CSeq: {number} {method}",
            *([f"Content-Type: {content}"] if body else []),
        ]  # fmt: skip
        more = headers + b"\r\n" if headers else b"Contact: <sip:ann@192.0.2.4:5070>\r\n"
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n" + more
        got = parse(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        if not isinstance(got, Request):
            raise SipProtocolError("no request")
        return got

    def tell(self, event: Callable[..., Any], *what: Any) -> Any:
        """Tell the protocol of an event, and carry out what it says."""
        result = event(*what, now=self.now)
        said = 0
        while self.protocol.effects:
            said += 1
            assert said < 50, "one event makes effects without end"
            self._carry_out(self.protocol.effects.popleft())
        return result

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Respond(_, response):
                parse(response.serialise())
            case Ask(request, _) | Invite(request, _) | Post(request, _):
                parse(request.serialise())
                self.asked = [*self.asked[-5:], request]
            case Acknowledge(ack, _):
                parse(ack.serialise())
            case Begin():
                self.protocol.begun(now=self.now)
            case Left():
                self.left += 1
        assert self.left <= 1, "a call ends once"

    def event(self, code: int, rest: bytes) -> None:
        """One thing that happens: time passes, a message comes, or the session says something."""
        protocol, detail = self.protocol, rest[0] if rest else 0
        over, standing = protocol.state is InviteState.OVER, isinstance(getattr(protocol, "dialog", None), object)
        match code % 8:
            case 0:
                self.run(self.now + detail * detail / 100)
            case 1 | 2 | 3 if not over and hasattr(protocol, "dialog") and standing:
                method = _METHODS[detail % len(_METHODS)]
                choice, step = (rest[1] if len(rest) > 1 else 0), (rest[2] if len(rest) > 2 else 1)
                at = choice % len(_BODIES)
                number = max(1, protocol.dialog.remote_cseq) + (step - 128 if step > 250 else step % 4)
                request = self._request(method, max(0, number), rest[3:], _BODIES[at], _CONTENT[at])
                if method == "ACK":
                    self.tell(protocol.on_ack, request)
                elif method == "CANCEL":
                    if isinstance(protocol, InviteServer):
                        self.tell(protocol.on_cancel)
                else:
                    self.tell(protocol.on_request, server_key(request), request)
            case 4 | 5 if self.asked:
                request = self.asked[-1 - detail % min(2, len(self.asked))]
                status = _STATUSES[(rest[1] if len(rest) > 1 else 0) % len(_STATUSES)]
                body = _BODIES[(rest[2] if len(rest) > 2 else 0) % len(_BODIES)]
                tag = f"fork{rest[3] % 3}" if len(rest) > 3 else "theirs"
                more = [_CONTACT, *([("Content-Type", "application/sdp")] if body else [])]
                written = response_to(request, status, to_tag=tag, headers=more, body=body).serialise()
                head, _, rest_of_it = written.partition(b"\r\n\r\n")
                made_up = rest[4:].strip() and b"\r\n" + rest[4:].strip()
                written = head + made_up + b"\r\n\r\n" + rest_of_it
                self.tell(protocol.on_response, key_of(request), parse(written))
            case 6 if self.asked:
                self.tell(protocol.on_failed, key_of(self.asked[-1]), 408)
            case 7 if not over:
                self._session(detail, rest)

    def _session(self, detail: int, rest: bytes) -> None:
        protocol = self.protocol
        match detail % 6:
            case 0:
                self.tell(protocol.hang_up, "end")
            case 1 if isinstance(protocol, InviteServer):
                self.tell(protocol.on_ready)
            case 2 if isinstance(protocol, InviteServer):
                self.tell(protocol.on_greeted)
            case 3 if protocol.may_transfer():
                data = rest[1:].decode("utf-8", "replace")
                self.tell(protocol.transfers.start, protocol.dialog, Uri.parse("sip:x@192.0.2.7"), None, data)
            case 4 if hasattr(protocol, "dialog"):
                self.tell(protocol.tell_referred, Referral(Uri.parse("sip:x@192.0.2.7"), event="refer"), 200, "OK")
            case 5:
                self.tell(protocol.end, "engine is gone")

    def run(self, until: float) -> None:
        """Let the time pass."""
        protocol: InviteDialog = self.protocol
        for _ in range(2000):
            due = protocol.deadline()
            if due is None or due > until:
                self.now = until
                return
            self.now = max(self.now, due)
            self.tell(protocol.tick)
        raise AssertionError(f"2000 timers before {until} s")


def run_call(data: bytes) -> None:
    """Whatever comes in whatever order, a call says readable messages, ends once, and then waits for nothing."""
    first, *events = parts(data) if data else [b"\x01"]
    try:
        call = _Call(first[0] if first else 1, first[1:])
    except (SipProtocolError, NotAcceptable):
        return
    for event in events[:40]:
        with contextlib.suppress(SipProtocolError):  # ``parse`` refuses what the case made up
            if event:
                call.event(event[0], event[1:])
    if call.protocol.state is not InviteState.OVER:
        call.tell(call.protocol.end, "the case is over")
    call.run(call.now + 1000)
    assert call.protocol.state is InviteState.OVER and call.left == 1 and call.protocol.deadline() is None


_UP = (b"\x01\x01", b"\x01\x00\x00\x00")
TARGETS = [
    Target(
        name="sip-call", run=run_call, without_text="reports numbers and states; sip-headers asserts the rest",
        covers=(
            "sip_bridge/dialog/invite.py", "sip_bridge/dialog/invite_client.py", "sip_bridge/dialog/invite_server.py",
            "sip_bridge/dialog/awaited_ack.py", "sip_bridge/dialog/session_modification.py",
            "sip_bridge/dialog/session_refresh.py", "sip_bridge/dialog/own_requests.py",
            "sip_bridge/dialog/transfer.py",
        ),
        seeds=(
            joined(*_UP, b"\x01\x02\x01\x01", b"\x01\x00\x00\x00", b"\x01\x01\x00\x01"),
            joined(b"\x41\x01", b"\x01\x00\x00\x00", b"\x00\xf0", b"\x01\x03\x01\x01Supported: timer", b"\x07\x00"),
            joined(b"\x43\x01", b"\x01\x00\x00\x00", b"\x01\x07\x00\x01Refer-To: <sip:a@b>", b"\x07\x04", b"\x00\x99"),
            joined(*_UP, b"\x07\x03data", b"\x04\x00\x04\x00", b"\x01\x06\x05\x01Event: refer", b"\x01\x01\x00\x01"),
            joined(b"\x80", b"\x04\x00\x01", b"\x04\x00\x02\x01\x01", b"\x04\x00\x03\x01\x01", b"\x01\x01\x00\x01"),
            joined(b"\x84", b"\x04\x00\x06\x00\x01WWW-Authenticate: Digest realm=\"r\",nonce=\"n\"",
                   b"\x04\x00\x03\x01\x01", b"\x04\x00\x03\x01\x02", b"\x07\x00"),
            joined(b"\x00\x00", b"\x01\x00\x01\x00", b"\x07\x01", b"\x06", b"\x00\xff"),
            joined(b"\x02\x01", b"\x07\x02", b"\x01\x08\x00\x00", b"\x07\x05"),
        ),
        words=(*SIP_WORDS, b"\x1e", b"\x1e\x01", b"\x1e\x04", b"\x1e\x07", b"\x1e\x00\xff", b"Session-Expires: 90",
               b"Min-SE: 4000000000", b"Require: timer", b"Subscription-State: terminated"),
    ),
]  # fmt: skip
