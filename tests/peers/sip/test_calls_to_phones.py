"""Our calls to programs of others: baresip is called, speaks TLS and SRTP; sipp asks for a password."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import trustme

from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip, needs_sipp
from tests.peers.sip.baresip import baresip
from tests.peers.sip.conftest import SENTENCE, SPEAK
from tests.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    needs_baresip,
]

CONFIG = """
sip:
  port: {port}
  tls: {{port: {tls}, certificate: server.pem, key: server.pem, authorities: ca.pem}}
  rtp_ports: 21000-21999
  allowed_targets: ["*@127.0.0.1"]
  trunks:
    phones: {{addresses: [127.0.0.1], numbers: {{"100": speak}}}}
    secure: {{addresses: [192.0.2.2], srtp: required, proxy: "sip:127.0.0.1:{secure_tls};transport=tls"}}
    pbx: {{addresses: [192.0.2.1], username: bot, password: secret, proxy: "sip:127.0.0.1:{pbx}"}}
routes:
  default: {{}}
  speak:
    dialogue: {{script: speak.yaml}}
  keys:
    dialogue: {{script: keys.yaml}}
"""

KEYS = """
start: one
steps:
  one:
    - send_digits: "159"
    - gather: {timeout_s: 60, max_digits: 3, variable: typed, otherwise: one}
    - say: You typed {typed:spaced}.
    - hang_up
"""


@dataclass
class Calling:
    """The server, and where it is."""

    live: Live
    port: int
    tls: int
    pbx: int
    """The port of the trunk ``pbx``."""
    secure: int
    """SIP port of the phone that the trunk ``secure`` leads to; TLS is the next."""
    certificate: Path
    """The certificate of a phone at 127.0.0.1."""
    authority: Path

    async def place(self, to: str, **more: Any) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.live.http}/v1/calls", json={"to": to, **more}) as answer,
        ):
            assert answer.status == 201, await answer.text()
            return dict(await answer.json())

    async def show(self, call_id: str) -> dict[str, Any]:
        async with aiohttp.ClientSession() as http, http.get(f"{self.live.http}/v1/calls/{call_id}") as answer:
            return dict(await answer.json())

    async def shows(self, call_id: str, **fields: Any) -> bool:
        return fields.items() <= (await self.show(call_id)).items()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Calling]:
    folder = tmp_path_factory.mktemp("calling")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("server", "phone"):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    (folder / "speak.yaml").write_text(SPEAK)
    (folder / "keys.yaml").write_text(KEYS)
    port, tls, pbx, secure = (free_port() for _ in range(4))
    config = CONFIG.format(port=port, tls=tls, pbx=pbx, secure_tls=secure + 1)
    async with serve(folder, config) as live:
        yield Calling(live, port, tls, pbx, secure, folder / "phone.pem", folder / "ca.pem")


async def test_a_phone_that_we_call_hears_a_sentence(calling: Calling, tmp_path: Path) -> None:
    async with baresip(tmp_path / "phone", account=";answermode=auto") as phone:
        await calling.place(f"sip:alice@127.0.0.1:{phone.port}", route="speak")
        await phone.until("CALL_ESTABLISHED")
        await phone.until("CALL_CLOSED")
    heard = transcript_of(phone.heard)
    assert understood(SENTENCE, heard), heard


async def test_keys_go_both_ways_in_a_call_of_ours(calling: Calling, tmp_path: Path) -> None:
    async with baresip(tmp_path / "phone", account=";answermode=auto") as phone:
        placed = await calling.place(f"sip:alice@127.0.0.1:{phone.port}", route="keys")
        await phone.until("CALL_ESTABLISHED")
        await phone.until("CALL_DTMF_END", 3)
        # A key that is pressed while tones go out would cut them short.
        await until(lambda: calling.shows(placed["callId"], state="listening"), "the end of the tones")
        assert [event["param"] for event in phone.events if event.get("type") == "CALL_DTMF_START"] == ["1", "5", "9"]
        phone.command("sndcode", "42#")
        await phone.until("CALL_CLOSED")
    heard = transcript_of(phone.heard)
    assert understood("You typed 4 2", heard), heard


async def test_a_phone_that_rings_for_too_long_is_given_up(calling: Calling, tmp_path: Path) -> None:
    async with baresip(tmp_path / "phone") as phone:
        placed = await calling.place(f"sip:alice@127.0.0.1:{phone.port}")
        await phone.until("CALL_INCOMING")
        await until(lambda: calling.shows(placed["callId"], state="ringing"), "ringing")
        assert await calling.live.status(f"/v1/calls/{placed['callId']}", method="DELETE") == 204
        await phone.until("CALL_CLOSED")
        assert (await calling.show(placed["callId"]))["reason"] == "cancelled"


@pytest.mark.parametrize("outgoing", [True, False], ids=["to the phone", "by the phone"])
async def test_a_call_over_tls_with_srtp_is_heard(
    outgoing: bool,
    calling: Calling,
    tmp_path: Path,
) -> None:
    config = f"sip_certificate {calling.certificate}\nsip_cafile {calling.authority}\nsip_verify_server yes\n"
    account = ";transport=tls;mediaenc=srtp-mand;answermode=auto"
    async with baresip(tmp_path / "phone", account=account, config=config, port=calling.secure) as phone:
        if outgoing:
            await calling.place("sip:alice@127.0.0.1", route="speak", trunk="secure")
        else:
            phone.command("dial", f"sip:100@127.0.0.1:{calling.tls};transport=tls")
        await phone.until("CALL_ESTABLISHED")
        await phone.until("CALL_CLOSED")
    assert "SRTP is Enabled" in (phone.folder / "output").read_text()
    heard = transcript_of(phone.heard)
    assert understood(SENTENCE, heard), heard


SIPP = """<?xml version="1.0" encoding="ISO-8859-1" ?>
<scenario name="a callee that wants a password">
  <recv request="INVITE"/>
  <send><![CDATA[
SIP/2.0 401 Unauthorized
[last_Via:]
[last_From:]
[last_To:];tag=challenge
[last_Call-ID:]
[last_CSeq:]
WWW-Authenticate: Digest realm="pbx", nonce="47ebe028cda119c35d4877b383027d28da013815", algorithm=MD5, qop="auth"
Content-Length: 0

]]></send>
  <recv request="ACK"/>
  <recv request="INVITE"><action><verifyauth assign_to="good" username="bot" password="secret"/></action></recv>
  <nop next="1" test="good"/>
  <send><![CDATA[
SIP/2.0 403 Forbidden
[last_Via:]
[last_From:]
[last_To:];tag=[call_number]
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

]]></send>
  <recv request="ACK"/>
  <label id="1"/>
  <send><![CDATA[
SIP/2.0 180 Ringing
[last_Via:]
[last_From:]
[last_To:];tag=[call_number]
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port]>
Content-Length: 0

]]></send>
  <send retrans="500"><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:];tag=[call_number]
[last_Call-ID:]
[last_CSeq:]
Contact: <sip:[local_ip]:[local_port]>
Content-Type: application/sdp
Content-Length: [len]

v=0
o=user1 53655765 2353687637 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0
a=rtpmap:0 PCMU/8000

]]></send>
  <recv request="ACK"/>
  <recv request="BYE"/>
  <send><![CDATA[
SIP/2.0 200 OK
[last_Via:]
[last_From:]
[last_To:]
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

]]></send>
</scenario>
"""


@needs_sipp
async def test_sipp_wants_a_password_and_gets_it(calling: Calling, tmp_path: Path) -> None:
    (tmp_path / "callee.xml").write_text(SIPP)
    sipp = await asyncio.create_subprocess_exec(
        "sipp", "-sf", "callee.xml", "-i", "127.0.0.1", "-mi", "127.0.0.1", "-p", str(calling.pbx), "-m", "1",
        "-nostdin", "-timeout", f"{PATIENCE_S:g}s", cwd=tmp_path,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        placed = await calling.place("+4930123", trunk="pbx", route="keys")
        await until(lambda: calling.shows(placed["callId"], direction="outbound"), "the answer")
        assert await calling.live.status(f"/v1/calls/{placed['callId']}", method="DELETE") == 204
        assert await sipp.wait() == 0
    finally:
        if sipp.returncode is None:
            sipp.kill()
            await sipp.wait()
    await until(lambda: calling.live.metric_is("talkspurt_calls_active", 0, transport="sip"))
    assert not re.search(r"secret", calling.live.logged())
