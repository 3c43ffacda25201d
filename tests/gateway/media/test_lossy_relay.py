"""RTP by way of a relay that loses, delays and reorders packets, seeded and on a virtual clock."""

import random

import pytest

from tests.gateway.media.rtp_scripts import Far
from tests.gateway.media.test_rtp_session import Call

PACKETS = 1500


class LossyRelay:
    """Says what becomes of each packet: None is lost, else the seconds by which it comes late. Two packets whose delays
    differ by more than the 20 ms between them change places."""

    def __init__(self, seed: int, *, loss: float, jitter_s: float) -> None:
        self._rng = random.Random(seed)
        self._loss, self._jitter_s = loss, jitter_s
        self.dropped: set[int] = set()

    def __call__(self, index: int) -> float | None:
        if index == 0:
            return 0.0  # for the receiver, a stream begins with the packet that comes first
        delay_s = self._rng.uniform(0, self._jitter_s)
        if self._rng.random() < self._loss and index < PACKETS - 1:  # the last always comes
            self.dropped.add(index)
            return None
        return delay_s


class Listener(Call):
    """Keeps what is heard: the number of each packet, None where one was concealed."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int | None] = []

    def on_audio(self, payload: bytes) -> None:
        self.heard.append(int.from_bytes(payload[:2], "big") - 1 if payload else None)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_bad_network_leaves_is_heard_in_order_and_what_it_took_is_concealed(seed: int) -> None:
    relay, call = LossyRelay(seed, loss=0.05, jitter_s=0.05), Listener()
    steps = list(Far().frames(PACKETS, 0.1, relay))
    times = [step[0] for step in steps]
    assert times != sorted(times), "some packets overtake others"
    call.play([(0.0, "listen", True), *steps])

    words = [number for number in call.heard if number is not None]
    assert words == sorted(words), "in order"
    given_up = set(range(PACKETS)) - set(words) - relay.dropped
    assert len(given_up) < 0.01 * PACKETS, "what came is heard, but for the first late ones, before the delay was known"
    assert call.heard.count(None) == len(relay.dropped | given_up), "each of the others is concealed in its place"
    assert call.session.stats.lost == len(relay.dropped)
    assert 0.005 < call.session.stats.jitter_s < 0.05
    whole = call.arrival.reception()
    assert whole is not None and (whole.lost, whole.received) == (len(relay.dropped), PACKETS - len(relay.dropped))
    assert 0.005 < whole.jitter_s < whole.max_jitter_s < 0.05
