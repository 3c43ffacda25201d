"""How long a first chunk is: properties of the choice, and what it remembers. Times are numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tts_engine.cosyvoice.token2wav.first_chunk import IN_HAND_S, FirstChunk

SOUNDS_S = (0.2, 0.5, 0.8)
seconds = st.floats(0, 5)
sounds = st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4, unique=True).map(sorted)


@given(sounds, seconds, seconds, seconds)
def test_the_sound_lasts_until_the_chunk_behind_or_nothing_lasts_longer(
    sounds_s: list[float], took_s: float, wait_s: float, slack_s: float
) -> None:
    first = FirstChunk()
    first.followed(took_s, now=0.0)
    place = first.choose(sounds_s, slack_s=slack_s, wait_s=wait_s, now=0.0)
    lasts = slack_s + sounds_s[place] >= took_s + wait_s + IN_HAND_S
    assert lasts or place == len(sounds_s) - 1


@given(sounds, seconds, seconds, st.floats(0, 2))
def test_more_load_never_makes_it_shorter(sounds_s: list[float], took_s: float, wait_s: float, more_s: float) -> None:
    first = FirstChunk()
    first.followed(took_s, now=0.0)
    short = first.choose(sounds_s, slack_s=0.0, wait_s=wait_s, now=0.0)
    assert first.choose(sounds_s, slack_s=0.0, wait_s=wait_s + more_s, now=0.0) >= short
    first.followed(took_s + more_s, now=0.0)
    assert first.choose(sounds_s, slack_s=0.0, wait_s=wait_s, now=0.0) >= short


@given(st.lists(st.tuples(seconds, seconds), min_size=1), st.floats(0, 100))
def test_what_is_remembered_is_at_most_the_slowest_and_only_fades(
    noted: list[tuple[float, float]], later_s: float
) -> None:
    first, now = FirstChunk(), 0.0
    for took_s, after_s in noted:
        now += after_s
        first.followed(took_s, now=now)
        assert first.slowest_s(now) >= took_s
    assert first.slowest_s(now) <= max(took_s for took_s, _ in noted)
    assert first.slowest_s(now + later_s) <= first.slowest_s(now)


def test_an_idle_engine_takes_the_shortest_and_a_burst_longer_ones() -> None:
    first = FirstChunk()
    first.followed(0.04, now=0.0)
    places = [first.choose(SOUNDS_S, slack_s=0.0, wait_s=wait_s, now=0.0) for wait_s in (0.0, 0.01, 0.1, 0.2, 0.4, 2.0)]
    assert places == [0, 0, 1, 1, 2, 2]


def test_who_has_sound_in_hand_gets_the_longest() -> None:
    """As a turn's later clauses do, and one that is made ahead: nobody waits, and fewer chunks are less work."""
    assert FirstChunk().choose(SOUNDS_S, slack_s=0.9, wait_s=0.0, now=0.0) == 2
    assert FirstChunk().choose(SOUNDS_S, slack_s=1e6, wait_s=0.0, now=0.0) == 2


def test_after_a_slow_one_the_shortest_is_tried_again_when_that_has_faded() -> None:
    first = FirstChunk()
    first.followed(0.3, now=100.0)
    places = [first.choose(SOUNDS_S, slack_s=0.0, wait_s=0.0, now=now) for now in (100.0, 105.0, 110.0, 130.0)]
    assert places == [1, 1, 1, 0]
    first.followed(0.1, now=130.0)  # what is noted now counts again
    assert first.slowest_s(130.0) == 0.1
