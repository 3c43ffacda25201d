"""Calls of a real phone by TLS, to a trunk with SRTP and to one without: what is heard, and what is logged."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import trustme

from tests.peers.ears import transcript_of, understood
from tests.peers.live_server import Live, serve
from tests.peers.ports import free_port
from tests.peers.programs import needs_baresip
from tests.peers.sip.baresip import baresip
from tests.peers.sip.conftest import SENTENCE, SPEAK
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_baresip]

CONFIG = """
sip:
  port: {port}
  tls: {{port: {tls}, certificate: server.pem, key: server.pem, authorities: ca.pem}}
  rtp_ports: 21000-21999
  trunks:
    phones: {{addresses: [127.0.0.1], srtp: {srtp}, route: speak}}
    callee: {{addresses: [192.0.2.2], proxy: "sip:127.0.0.1:{callee};transport=tls"}}
  allowed_targets: ["*@127.0.0.1"]
routes: {{default: {{}}, speak: {{dialogue: {{script: speak.yaml}}}}}}
"""


@dataclass
class Server:
    """One whose trunk has a rule."""

    live: Live
    tls: int
    callee: int
    """The port of the phone that we call by TLS."""
    folder: Path

    def phone(self, certificate: str = "phone", authority: str = "ca") -> str:
        """Return the phone's configuration."""
        return (
            f"sip_certificate {self.folder}/{certificate}.pem\nsip_cafile {self.folder}/{authority}.pem\n"
            "sip_verify_server yes\n"
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["required", "off"])
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("secure")
    for name, suffix in (("ca", ""), ("other", "-other")):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / f"{name}.pem"))
        for who in ("server", "phone"):
            issued = authority.issue_cert("127.0.0.1")
            issued.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{who}{suffix}.pem"))
    (folder / "speak.yaml").write_text(SPEAK)
    port, tls, callee = free_port(), free_port(), free_port()
    async with serve(folder, CONFIG.format(port=port, tls=tls, callee=callee, srtp=request.param)) as live:
        yield Server(live, tls, callee, folder)


@pytest.mark.parametrize("keys", ["srtp-mand", "srtp", ""], ids=["RTP/SAVP", "a key in RTP/AVP", "RTP"])
async def test_a_trunk_takes_what_its_rule_says_and_names_what_it_refuses(
    keys: str, server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    rule = request.node.callspec.params["server"]
    account = ";transport=tls" + (f";mediaenc={keys}" if keys else "")
    async with baresip(tmp_path / "phone", account=account, config=server.phone()) as phone:
        phone.command("dial", f"sip:100@127.0.0.1:{server.tls};transport=tls")
        closed = await phone.until("CALL_CLOSED")
    output = (phone.folder / "output").read_text()
    if (rule, keys) in (("required", ""), ("off", "srtp-mand")):
        assert "488" in str(closed), closed
        expected = "RTP/AVP without a usable crypto" if rule == "required" else "RTP/SAVP, expected RTP/AVP"
        await until(lambda: re.search(f"call rejected.*{expected}", server.live.logged()), "the reason in the log")
        return
    assert ("SRTP is Enabled" in output) == (rule == "required"), output
    heard = transcript_of(phone.heard)
    assert understood(SENTENCE, heard), heard


@pytest.mark.parametrize(
    ("certificate", "authority", "why"), [("phone-other", "ca", "CERTIFICATE_VERIFY_FAILED"), ("phone", "other", "CA")]
)
async def test_a_wrong_certificate_is_no_call_and_is_told(
    certificate: str, authority: str, why: str, server: Server, tmp_path: Path
) -> None:
    account = ";transport=tls;mediaenc=srtp-mand"
    async with baresip(tmp_path / "phone", account=account, config=server.phone(certificate, authority)) as phone:
        phone.command("dial", f"sip:100@127.0.0.1:{server.tls};transport=tls")
        await until(lambda: re.search(f"SIP connection refused.*{why}", server.live.logged()), "the reason in the log")
    assert not any(event.get("type") == "CALL_ESTABLISHED" for event in phone.events)


async def test_a_callee_with_a_wrong_certificate_is_not_called(server: Server, tmp_path: Path) -> None:
    config = server.phone("phone-other")
    async with baresip(tmp_path / "phone", account=";transport=tls", config=config, port=server.callee - 1) as phone:
        async with (
            aiohttp.ClientSession(server.live.http) as http,
            http.post("/v1/calls", json={"to": "sip:alice@127.0.0.1", "trunk": "callee"}) as answer,
        ):
            assert answer.status == 201, await answer.text()
            placed = await answer.json()
            await until(
                lambda: re.search("SIP connection failed.*CERTIFICATE_VERIFY_FAILED", server.live.logged()),
                "the reason",
            )

            async def failed() -> dict[str, str] | None:
                async with http.get(f"/v1/calls/{placed['callId']}") as shown:
                    found = dict(await shown.json())
                return found if found["state"] == "failed" else None

            ended = await until(failed, "the end of the attempt")
    assert ended["reason"] == "unreachable"
    assert not any(event.get("type") == "CALL_INCOMING" for event in phone.events)
