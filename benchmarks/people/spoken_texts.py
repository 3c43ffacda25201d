"""English texts of calls that are answered, for synthetic voices. The wordings are ours; no recording was copied.

Each half has its own texts and voices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import cast

import numpy as np
from hibari import Hibari

from benchmarks.people.rooms import RATE, Pcm, at_level, trimmed
from gateway.seams.messages import AnsweredBy
from tts_engine.embedded.espeak import EspeakSynthesizer
from tts_engine.embedded.voice_ids import ESPEAK as PREFIX
from tts_engine.synthesizer import ClauseRequest, Hearing
from voicecodecs.resample import resample

TEXTS: dict[str, dict[AnsweredBy, tuple[str, ...]]] = {
    "tuning": {
        "human": (
            "Hello?",
            "Hi, this is Tom.",
            "Yes?",
            "Good morning, Baker and Sons, Lucy speaking. How can I help you?",
            "Hey, can you hear me?",
            "Miller residence.",
            "Hello, who is calling please?",
            "Thanks for calling the garden centre, my name is Joan, what can I do for you today?",
            "One moment please. Yes, hello?",
            "Speaking.",
        ),
        "machine": (
            "Hi, you've reached Tom. I can't come to the phone right now. Please leave a message after the beep.",
            "Hello. No one is available to take your call. Please leave your name and number and we will call back.",
            "The person you have called is not available. Please record your message after the tone.",
            "Hey, it's Lucy. Leave me something nice, and I'll ring you later. Bye!",
            "This is the voice mailbox of four one five, five five five, one two one two. At the tone, please speak.",
            "Hi! We are out in the garden, or on holiday. You know what to do. Wait for the beep.",
            "Your call has been forwarded to an automatic voice message system.",
            "Good day. Our office is closed. Our hours are nine to five, Monday to Friday. Please call again then.",
        ),
        "screening": (
            "Hi. If you record your name and reason for calling, I'll see if this person is available.",
            "Hello, the person you are calling is using a call assistant. Please say your name and why you call.",
            "Before I connect you, may I ask who is calling and what it is about?",
        ),
        "ivr": (
            "Welcome to Northern Bank. For accounts, press one. For cards, press two. To speak to someone, press zero.",
            "All our agents are busy at the moment. Please hold, and your call will be answered shortly.",
            "Thank you for waiting. You are number three in the queue.",
            "Thank you for calling the clinic. If this is an emergency, hang up and dial nine one one. Otherwise stay "
            "on the line.",
        ),
    },
    "table": {
        "human": (
            "Hello, hello?",
            "Yeah, hi.",
            "Good afternoon, this is Peter.",
            "Green Street Dental Practice, Emma speaking, how may I help?",
            "Who's this?",
            "Yes, good evening.",
            "Hi there. Sorry, I'm driving, can you be quick?",
            "Reception, good morning. How can I direct your call?",
            "Jackson.",
            "Hello, Anna here. Is that you, mum?",
        ),
        "machine": (
            "Hello, this is Peter Green. I'm sorry I missed your call. Leave your name and a short message, please.",
            "You have reached the Smith family. We can't get to the phone just now, so please talk after the signal.",
            "The number you dialled is switched off. Please try again later, or leave a message after the tone.",
            "Hi, Emma's phone. I never listen to this, so send me a text instead.",
            "Your call has been sent to voicemail. When you have finished recording, hang up or press the hash key.",
            "Good evening. The practice is closed until Monday. In urgent cases call the hospital. After the beep you "
            "may leave a message.",
            "Sorry, I'm away from my desk or on another line. I will return your call as soon as I can.",
            "We are not in. Tell us who you are, and we will get back to you.",
        ),
        "screening": (
            "The person you are calling does not take calls from unknown numbers. Please state your name after a tone.",
            "Hi, I'm an automated assistant. Can you tell me your name and why you're calling?",
            "This call is being screened. Say who you are and the purpose of your call.",
        ),
        "ivr": (
            "Thank you for calling City Energy. Please listen to the following options. Press one for a new contract.",
            "Your call is important to us. The next free representative will be with you in a few minutes.",
            "You are in a queue. We are sorry for the delay. Please continue to hold.",
            "Para español, oprima nueve. For billing questions, press or say two.",
        ),
    },
}
VOICES = {"tuning": ("en-us+f2", "en-gb-x-rp+m3"), "table": ("en-us+m1", "en-gb-x-rp+f4")}
"""Voices of espeak-ng, besides the embedded one. They differ by the pitch and the formants."""
PITCH = {"tuning": 0.85, "table": 1.0}
"""Pitch of the embedded voice."""


def spoken(half: str) -> Iterator[tuple[AnsweredBy, str, Pcm]]:
    """Return each text of a half with its sound, by each voice."""
    for by, texts in TEXTS[half].items():
        for text in texts:
            yield by, text, at_level(trimmed(_embedded(text, PITCH[half])), -26.0)
            for voice in VOICES[half]:
                yield by, text, at_level(trimmed(asyncio.run(_espeak(text, voice))), -26.0)


@cache
def _hibari() -> Hibari:
    return Hibari(threads=1)


def _embedded(text: str, pitch: float) -> Pcm:
    # Played slower, a voice is lower: the resampler is told a rate that the samples do not have.
    return resample(_hibari()(text).astype(np.float32), int(24000 * pitch) // 100 * 100, RATE)


async def _espeak(text: str, voice: str) -> Pcm:
    synthesizer = EspeakSynthesizer([voice], RATE)
    await synthesizer.start()
    clause = ClauseRequest(text=text, voice=f"{PREFIX}{voice}", language="en", speed=1.0, instruct="", first=True)
    heard = cast(Hearing, None)  # it asks only synthesizers with a queue
    pieces = [chunk.pcm async for chunk in synthesizer.synthesize(clause, heard)]
    await synthesizer.aclose()
    return np.concatenate(pieces)
