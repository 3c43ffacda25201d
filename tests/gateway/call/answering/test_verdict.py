from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from gateway.call.answering.phrases import said_by
from gateway.call.answering.verdict import Answering, AnswerVerdict
from gateway.seams.messages import AnsweredBy


def played(
    answering: Answering, *utterances: tuple[float, float, str], until: float = 25.0
) -> list[tuple[float, AnswerVerdict]]:
    """Play utterances (begin, end, words at the end); return the verdicts with their times."""
    events: list[tuple[float, str, str]] = []
    for begin, end, text in utterances:
        events += [(begin, "begin", ""), (end, "end", ""), *([(end, "words", text)] if text else [])]
    verdicts: list[tuple[float, AnswerVerdict]] = []

    def expire(before: float) -> None:
        while (at := answering.deadline()) is not None and at <= before:
            found = answering.expire(at)
            if found is None and answering.deadline() == at:
                raise AssertionError(f"the deadline {at} changes nothing")
            if found is not None:
                verdicts.append((at, found))

    for at, kind, text in events:
        expire(at)
        found = answering.words(text, at) if kind == "words" else answering.speech(kind == "begin", at)
        if found is not None:
            verdicts.append((at, found))
    expire(until)
    return verdicts


@pytest.mark.parametrize(
    ("utterances", "by", "latest_s"),
    [
        ([(0.5, 1.0, "")], "human", 1.85),
        ([(0.5, 1.0, "Hello?")], "human", 1.35),
        ([(0.5, 1.1, ""), (1.7, 2.0, "")], "human", 2.85),
        ([(0.5, 6.0, "")], "machine", 4.1),
        ([(0.5, 2.0, ""), (2.3, 5.0, "")], "machine", 4.1),
        ([(0.5, 2.0, "Please leave a message")], "machine", 2.1),
        ([(0.5, 2.0, "Record your name and reason for calling")], "screening", 2.1),
        ([(0.5, 2.0, "For sales, press one.")], "ivr", 2.1),
        ([(0.5, 2.0, "Bitte hinterlassen Sie eine Nachricht")], "machine", 2.1),
        ([(0.5, 0.52, "")], "unknown", 8.1),
        ([], "unknown", 8.1),
    ],
)
def test_the_first_verdict(utterances: list[tuple[float, float, str]], by: AnsweredBy, latest_s: float) -> None:
    at, verdict = played(Answering(0.0), *utterances)[0]
    assert verdict.by == by
    assert at <= latest_s


@pytest.mark.parametrize(
    ("language", "text", "by"),
    [
        ("de", "Der gewünschte Gesprächspartner ist vorübergehend nicht erreichbar", "machine"),
        ("de", "Wenn Sie Ihren Namen und den Grund Ihres Anrufs nennen, sehe ich nach", "screening"),
        ("de", "Zurzeit sind alle Leitungen belegt", "ivr"),
        ("fr", "Je ne peux pas vous répondre, laissez-moi un mot après le bip", "machine"),
        ("fr", "Dites votre nom et le motif de votre appel", "screening"),
        ("fr", "Un conseiller va vous répondre", "ivr"),
        ("es", "El número que usted marcó está apagado o fuera de servicio", "machine"),
        ("es", "Diga su nombre y veré si esta persona está disponible", "screening"),
        ("es", "Su llamada será atendida en breve", "ivr"),
        ("it", "Il cliente da lei chiamato non è raggiungibile", "machine"),
        ("it", "Dica il suo nome e il motivo della chiamata", "screening"),
        ("it", "Rimanga in linea, il primo operatore risponderà", "ivr"),
        ("pt", "Grave o seu recado após o bip", "machine"),
        ("pt", "Diga o seu nome e o motivo da ligação", "screening"),
        ("pt", "Todos os nossos atendentes estão ocupados", "ivr"),
        ("zh", "您拨打的电话已关机", "machine"),
        ("zh", "请说出您的姓名和来电原因", "screening"),
        ("zh", "普通话请按一", "ivr"),
        ("de", "Moment bitte, ich verbinde", None),
        ("fr", "Il est au téléphone, qui est-ce ?", None),
        ("es", "¿Quién llama? No está en este momento", None),
        ("it", "Un momento, è al telefono", None),
        ("pt", "Quem está falando? Só um momento", None),
        ("zh", "请稍等", None),
    ],
)
def test_a_phrase_of_each_language_decides_and_words_of_a_person_do_not(
    language: str, text: str, by: AnsweredBy | None
) -> None:
    found = Answering(0.0, language).words(text, 1.0)
    assert (found.by if found else None) == by


WORDINGS = json.loads((Path(__file__).parents[3] / "vectors/answering/wordings.json").read_text("utf-8"))


@pytest.mark.parametrize("fragment", WORDINGS["fragments"], ids=lambda each: f"{each['system']} {each['text']}")
def test_published_wordings_of_assistants_are_recognised(fragment: dict[str, str]) -> None:
    assert said_by(fragment["text"], fragment["language"]).by == fragment["by"]


@pytest.mark.parametrize(
    ("language", "text", "by"),
    [
        ("en", "hi youve reached tom i cant come to the phone", "machine"),
        (
            "en",
            "Hi, I'm calling assist by Google, recording this call for the person you're trying to reach",
            "screening",
        ),
        ("en", "For billing, press 2", "ivr"),
        ("en", "Leave your name and the reason for your call", "machine"),
        ("de", "Hinterlasst uns doch eine kurze Nachricht", "machine"),
        ("de", "Das ist der Anruf Beantworter von Lea", "machine"),
        ("de", "Wählen Sie bitte die 2", "ivr"),
        ("fr", "laisse moi un petit message", "machine"),
        ("fr", "repondeur de Paul, parlez apres le bip", "machine"),
        ("fr", "Laissez votre nom et la raison de votre appel", "machine"),
        ("es", "dejen su nombre despues del tono", "machine"),
        ("it", "lasciateci un messaggio", "machine"),
        ("it", "il numero da lei selezionato e inesistente", "machine"),
        ("pt", "deixa o teu recado apos o sinal", "machine"),
        ("pt", "digite 3", "ivr"),
        ("zh", "您撥打的電話已關機", "machine"),
        ("", "you've reached tom and i'm not available", "machine"),
        ("", "hinterlassen Sie eine Nachricht", "machine"),
    ],
)
def test_inflections_contractions_digits_and_missing_accents_change_nothing(
    language: str, text: str, by: AnsweredBy
) -> None:
    assert said_by(text, language).by == by


@pytest.mark.parametrize(
    ("language", "text", "by"),
    [
        ("en", "Sorry, I missed your call earlier", None),
        ("en", "I'm on another line just now", None),
        ("en", "He's not available, do you want to leave a message?", "human"),
        ("en", "Thanks for calling, how can I help you?", "human"),
        ("en", "Yeah, I got your voicemail", "human"),
        ("en", "May I ask who's calling?", None),
        ("de", "Herr Müller ist nicht erreichbar", None),
        ("de", "Möchten Sie eine Nachricht hinterlassen?", "human"),
        ("fr", "Il est absent aujourd'hui", None),
        ("fr", "Voulez-vous laisser un message ?", "human"),
        ("es", "Ahora no está disponible", None),
        ("it", "Non è disponibile, vuole lasciare un messaggio?", "human"),
        ("pt", "Ele não está disponível, quer deixar recado?", "human"),
    ],
)
def test_what_a_person_may_say_too_does_not_make_a_machine(language: str, text: str, by: AnsweredBy | None) -> None:
    assert said_by(text, language).by == by


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("I can't take your call, I'm driving, I'll call you back", ["machine", "human"]),
        ("I'm driving, can I call you back?", ["human"]),
        ("Please leave a message", ["machine"]),
    ],
)
def test_a_pause_after_likely_words_of_a_machine_makes_them_a_person(text: str, by: list[AnsweredBy]) -> None:
    answering = Answering(0.0, "en")
    answering.speech(True, 0.5)
    found = [answering.words(text, 2.4)]
    found.append(answering.speech(False, 2.5))
    while (due := answering.deadline()) is not None:
        found.append(answering.expire(due))
    assert [verdict.by for verdict in found if verdict is not None] == by


def test_likely_words_are_told_once_and_certain_ones_settle_them() -> None:
    answering = Answering(0.0, "en")
    answering.speech(True, 0.5)
    first = answering.words("You've reached Tom, I'm not available", 2.0)
    assert first is not None and first.is_doubted
    assert answering.words("You've reached Tom, I'm not available so", 2.3) is None
    second = answering.words("You've reached Tom, I'm not available so leave a message", 3.0)
    assert second is not None and not second.is_doubted


def test_a_person_who_offers_help_after_a_queue_is_announced() -> None:
    verdicts = played(
        Answering(0.0, "en"),
        (0.5, 3.0, "All of our agents are busy"),
        (20.0, 23.0, "Thank you for holding, this is Emma, how can I help?"),
        until=30,
    )
    assert [verdict.by for _, verdict in verdicts] == ["ivr", "human"]


def test_words_of_a_recording_revise_a_verdict_by_time() -> None:
    verdicts = played(Answering(0.0, "en"), (0.5, 1.2, ""), (2.2, 3.5, "Please leave a message after the tone"))
    assert [verdict.by for _, verdict in verdicts] == ["human", "machine"]


def test_words_are_wanted_for_as_long_as_they_can_revise_a_person() -> None:
    answering = Answering(0.0, "en")
    assert [verdict.by for _, verdict in played(answering, (0.5, 1.2, "Hello?"), until=5.0)] == ["human"]
    assert (answering.needs_speech, answering.needs_words(5.0), answering.needs_words(9.0)) == (False, True, False)


def test_a_person_who_comes_after_a_queue_is_announced_and_another_announcement_is_not() -> None:
    verdicts = played(
        Answering(0.0, "en"),
        (0.5, 3.0, "All of our agents are busy"),
        (20.0, 23.0, "Please hold"),
        (40.0, 41.2, "Hello, this is Ann"),
        until=50,
    )
    assert [(verdict.by, verdict.waiting) for _, verdict in verdicts] == [("ivr", True), ("human", False)]


def test_a_beep_means_a_machine_and_ringback_means_nothing() -> None:
    answering = Answering(0.0)
    assert answering.tone("ringback", 1.0) is None
    found = answering.tone("beep", 2.0)
    assert found is not None and found.by == "machine"


def test_words_that_come_after_the_pause_still_announce_a_person() -> None:
    answering = Answering(0.0, "en")
    played(answering, (0.5, 3.0, "Please hold"), (20.0, 21.2, ""), until=22.0)
    found = answering.words("Hello, this is Ann", 22.1)
    assert found is not None and found.by == "human"


def test_a_machine_may_follow_a_screening_assistant() -> None:
    verdicts = played(
        Answering(0.0, "en"),
        (0.5, 3.0, "State your name"),
        (20.0, 23.0, "Please leave a message after the tone"),
    )
    assert [(verdict.by, verdict.waiting) for _, verdict in verdicts] == [("screening", True), ("machine", False)]


def test_a_beep_after_words_of_a_person_changes_nothing() -> None:
    answering = Answering(0.0, "en")
    assert played(answering, (0.5, 1.0, "Hello?"), until=2.0)[0][1].by == "human"
    assert answering.tone("beep", 5.0) is None


def test_speech_is_as_long_as_it_was_although_its_end_is_reported_late() -> None:
    answering = Answering(0.0, end_lag_s=0.3)
    answering.speech(True, 0.5)
    assert answering.deadline() == pytest.approx(4.2)
    assert answering.speech(False, 3.9) is None
    found = answering.expire(4.7)
    assert found is not None and found.by == "human"


@pytest.mark.parametrize(
    ("utterances", "found"),
    [
        # A company's telephone is answered with a whole sentence.
        ([(0.5, 5.2, "")], ["machine", "human"]),
        # A recording says a word, waits, and speaks over the bot.
        ([(0.5, 1.0, ""), (2.0, 8.0, "")], ["human", "machine", "machine"]),
        # A person asks again while the bot begins to speak.
        ([(0.5, 1.0, ""), (2.0, 3.6, "")], ["human"]),
        # This person answers the bot.
        ([(0.5, 1.0, ""), (3.0, 8.0, "")], ["human"]),
        ([(0.5, 4.5, ""), (4.9, 9.0, "")], ["machine", "machine"]),
    ],
)
def test_a_verdict_by_time_is_revised_by_what_follows_at_once(
    utterances: list[tuple[float, float, str]], found: list[AnsweredBy]
) -> None:
    assert [verdict.by for _, verdict in played(Answering(0.0), *utterances)] == found


def test_only_a_recording_by_its_length_is_doubted() -> None:
    answering = Answering(0.0)
    ((_, doubted), (_, certain)) = played(answering, (0.5, 9.0, ""))
    assert (doubted.is_doubted, certain.is_doubted) == (True, False)
    assert not answering.needs_speech


def test_a_tone_settles_a_doubted_recording() -> None:
    answering = Answering(0.0)
    played(answering, (0.5, 4.5, ""), until=5.0)
    found = answering.tone("beep", 5.2)
    assert found is not None and not found.is_doubted
    assert answering.deadline() is None


Kind = Literal["begin", "end", "music", "repeat", "over"]


def heard(*events: tuple[float, Kind]) -> list[tuple[float, AnsweredBy]]:
    """Play events: ``music``, ``repeat``, or ``begin`` and ``end`` of speech; return the verdicts with their times."""
    answering, found = Answering(0.0), []
    over: tuple[float, Kind] = (events[-1][0] + 5.0, "over")
    for at, kind in (*events, over):
        while (due := answering.deadline()) is not None and due <= at:
            if (verdict := answering.expire(due)) is not None:
                found.append((due, verdict.by))
        if kind == "begin" or kind == "end":
            verdict = answering.speech(kind == "begin", at)
        else:
            verdict = answering.tone(kind, at) if kind != "over" else None
        if verdict is not None:
            found.append((at, verdict.by))
    return found


def test_music_is_a_queue_and_the_one_who_speaks_instead_of_it_is_a_person() -> None:
    announced: tuple[tuple[float, Kind], ...] = ((1.0, "begin"), (8.0, "end"), (11.0, "music"), (15.0, "music"))
    found = heard(*announced, (20.0, "begin"), (24.0, "end"), (25.3, "music"), (40.0, "begin"), (41.0, "end"))
    assert [by for _, by in found] == ["machine", "machine", "ivr", "human"]
    assert found[-1][0] == pytest.approx(41.0 + 1.6)


def test_music_long_after_a_person_has_answered_or_after_a_recording_tone_is_none_of_a_queue() -> None:
    assert heard((0.5, "begin"), (1.0, "end"), (40.0, "music")) == [(1.8, "human")]
    answering = Answering(0.0)
    answering.tone("beep", 2.0)
    assert answering.tone("music", 5.0) is None


@pytest.mark.parametrize("first_end", [1.8, 9.0])
def test_an_announcement_that_is_heard_again_is_a_queue_and_who_speaks_between_is_a_person(first_end: float) -> None:
    again: tuple[tuple[float, Kind], ...] = ((31.0, "begin"), (34.5, "repeat"), (38.0, "end"), (38.2, "repeat"))
    found = heard((1.0, "begin"), (first_end, "end"), *again, (50.0, "begin"), (51.0, "end"))
    assert [by for _, by in found][-2:] == ["ivr", "human"]
    assert [at for at, _ in found][-2:] == [34.5, pytest.approx(52.6)]


def test_a_mailbox_that_is_known_by_its_words_stays_one_although_it_repeats_them() -> None:
    answering = Answering(0.0)
    answering.words("Please leave a message", 2.0)
    assert answering.tone("repeat", 20.0) is None


def test_a_person_who_puts_the_call_on_hold_at_once_is_a_queue() -> None:
    assert [by for _, by in heard((0.5, "begin"), (1.0, "end"), (6.0, "music"))] == ["human", "ivr"]
