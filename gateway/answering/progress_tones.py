"""Frequencies and lengths of tones that are no recording beep. Pure.

Facts: ITU-T E.180 Supplement 2 (tones of national networks), as published in its list of 2003 and in the configuration
of Asterisk (``indications.conf``) for 37 countries; British Telecom SIN 350; ITU-T T.30 for fax tones; ITU-T Q.23 for
touch tones.
"""

from __future__ import annotations

from voicecodecs.dtmf import HIGH_HZ, LOW_HZ

EXACT_HZ = 4.0
"""Networks make their tones digitally; a beep seldom has the same frequency to 4 Hz."""

SINGLE: dict[float, tuple[float, ...]] = {
    400: (0.1, 0.2, 0.225, 0.25, 0.3, 0.375, 0.4, 0.5, 0.75, 1.0),
    414: (0.25, 0.5, 1.0),
    420: (0.2, 0.375, 0.4, 1.0),
    425: (),
    440: (0.25, 0.5, 1.5),
    450: (0.1, 0.35, 0.4, 0.7, 1.0),
}
"""Call-progress tones with one frequency, Hz: lengths of their bursts, seconds. Empty: bursts of any length, because
most networks use this frequency."""

RING_FROM_S = 0.78
"""A burst at least as long belongs to a ringing tone, a shorter one to a busy tone or to a double ring."""

PAIR_HZ = (310.0, 660.0)
"""Tones with two or more components within this band are call-progress tones in every network."""

BUSY_PAIR_HZ = (480.0, 620.0)
DIAL_PAIRS_HZ = ((350.0, 440.0), (330.0, 440.0), (350.0, 450.0))

CALLING_HZ, CALLING_S = 1100.0, 0.5
"""Calling tone of a fax machine (CNG), every 3.5 s."""
ANSWER_HZ = 2100.0
"""Answer tone of a fax machine or modem (CED), longer than 2.4 s."""
INFORMATION_HZ = (950.0, 1400.0, 1800.0)
"""Special information tones: three in turn of about 0.33 s. North America has other pitches and lengths (914 to
1,777 Hz, 0.27 and 0.38 s)."""


def is_progress(hz: float, length_s: float, *, cut: bool) -> bool:
    """Return True if a burst of one frequency may belong to a call-progress tone.

    Args:
        cut: the burst may be longer than it was heard, because the sound began with it.
    """
    for nominal, lengths in SINGLE.items():
        if abs(hz - nominal) <= EXACT_HZ and (
            cut or not lengths or any(abs(length_s - each) <= max(0.03, 0.08 * each) for each in lengths)
        ):
            return True
    # Alone in Spain; a first tone of its own in Finland and Estonia.
    return abs(hz - INFORMATION_HZ[0]) <= EXACT_HZ and min(abs(length_s - each) for each in (0.33, 0.65)) <= 0.02


def is_calling_tone(hz: float, length_s: float) -> bool:
    """Return True for the sound of one calling tone of a fax machine; T.30 allows 38 Hz and 15 %, machines use less."""
    return abs(hz - CALLING_HZ) <= 12 and abs(length_s - CALLING_S) <= 0.08


def is_answer_tone(hz: float) -> bool:
    """Return True for the frequency of an answer tone (T.30: 15 Hz of tolerance)."""
    return abs(hz - ANSWER_HZ) <= 16


def is_dtmf(low_hz: float, high_hz: float) -> bool:
    """Return True for the two frequencies of a touch tone, within 1.5 % (Q.24 table A-1)."""
    return any(abs(low_hz - each) <= 0.015 * each for each in LOW_HZ) and any(
        abs(high_hz - each) <= 0.015 * each for each in HIGH_HZ
    )


def is_part_of_information(hz: float) -> bool:
    """Return True for the frequency of one special information tone."""
    return any(abs(hz - each) <= 0.06 * each for each in INFORMATION_HZ)


def is_information(steps_hz: tuple[float, ...]) -> bool:
    """Return True if tones that follow each other without a pause are special information tones, or their first two."""
    return len(steps_hz) >= 2 and all(
        abs(hz - nominal) <= (0.06 if len(steps_hz) == 3 else 0.01) * nominal
        for hz, nominal in zip(steps_hz, INFORMATION_HZ, strict=False)
    )
