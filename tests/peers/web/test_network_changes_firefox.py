"""Firefox's own connection: an ICE restart, max-bundle with video first, and a microphone that is gone."""

from pathlib import Path

import numpy as np
import pytest

from gateway.seams.messages import Subscribe
from tests.gateway.webrtc.webrtc_gateway import TestGateway, gateway
from tests.peers.programs import needs_firefox
from tests.peers.web.firefox import Firefox, firefox
from tests.waiting import until

pytestmark = [needs_firefox, pytest.mark.slow]

PAGE = (Path(__file__).parent / "page.html").read_text()


async def both_hear(made: TestGateway, page: Firefox, turn: str) -> None:
    """Firefox's tone reaches the server, and its decoder finds sound in the bot's words."""
    pcm: list[bytes] = []
    session = next(iter(made.directory))
    session.caller.on_pcm = pcm.append  # type: ignore[method-assign, assignment]
    session.on_message(Subscribe(media=True, sample_rate=16000))
    before = (await page.do("return await call.stats()")).get("inbound-rtp", {}).get("totalAudioEnergy", 0)
    await page.do(
        f"call.say({{type: 'text', token: 'Hello there.', last: true, turn: '{turn}', interruptible: 'none'}})"
    )
    await page.until(f"return call.messages.some(m => m.turn === '{turn}' && m.event === 'finished')")
    await until(lambda: pcm and np.abs(np.frombuffer(b"".join(pcm[-20:]), np.int16)).max() > 500, "the microphone")
    after = (await page.do("return await call.stats()"))["inbound-rtp"]["totalAudioEnergy"]
    assert after > before + 0.001


async def test_an_ice_restart_keeps_sound_and_data_channel(tmp_path: Path) -> None:
    async with gateway(page=PAGE) as made, firefox(tmp_path / "profile") as page:
        await page.open(made.url)
        await page.do("await call.start({microphone: true, video: true, config: {bundlePolicy: 'max-bundle'}})")
        await page.until("return call.messages.some(m => m.type === 'setup')")
        await both_hear(made, page, "first")
        (leg,) = made.webrtc._legs.values()
        peer = leg.peer
        assert peer is not None
        before = peer._path.ice
        await page.do("call.pc.restartIce(); await call.offer()")
        await until(lambda: peer._path.ice is not before, "the new path")
        await both_hear(made, page, "second")
        assert await page.do("return call.messages.filter(m => m.type === 'setup').length") == 1
        await page.do("await call.pc.getSenders().find(s => s.track).replaceTrack(null)")
        await bot_is_heard(made, page)


async def bot_is_heard(made: TestGateway, page: Firefox) -> None:
    """Without a microphone the bot is still heard, and the call continues."""
    await page.do("call.say({type: 'text', token: 'Still here.', last: true, turn: 'alone', interruptible: 'none'})")
    await page.until("return call.messages.some(m => m.turn === 'alone' && m.event === 'finished')")
    assert made.ended == []
