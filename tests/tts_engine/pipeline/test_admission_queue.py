"""Turns that find no place in a voice model: they wait in order, for so long, and so many."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from tests.tts_engine.pipeline.test_engine import Counter
from tts_engine.api import AudioChunk, UtteranceRequest
from tts_engine.errors import EngineError, Exhausted
from tts_engine.pipeline.admission_queue import AdmissionConfig, AdmissionQueue, Ticket
from tts_engine.pipeline.engine import Engine
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.synthesizer import ClauseRequest, Hearing, PcmChunk, Playhead
from tts_engine.tone import ToneSynthesizer
from voicecodecs.registry import AudioFormat

pytestmark = pytest.mark.virtual_time

CALL, HTTP = 5, 3
CLAUSE_S = 0.2
RETRY_S = 3.0


class Places(ToneSynthesizer):
    """Takes 0.2 s for a clause, whatever its length, and refuses one too many."""

    def __init__(self, places: int = 1, *, refuses_later_clauses: bool = False, answers_s: float = 0.0) -> None:
        super().__init__(chunk_ms=60_000, delay_s=lambda chunk: CLAUSE_S if chunk == 0 else 0.0)
        self.places, self._answers_s = places, answers_s
        self._refuses_later = refuses_later_clauses
        self.refused: list[ClauseRequest] = []

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        if self._answers_s:
            await asyncio.sleep(self._answers_s)
        if self.active >= self.places and (clause.first or self._refuses_later):
            self.refused.append(clause)
            raise Exhausted(f"{self.places} places are taken", retry_after_s=RETRY_S)
        if clause.placed is not None:
            clause.placed()
        async with aclosing(super().synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                yield chunk


class Turns:
    """Turns at one engine, and the order in which they are heard first."""

    def __init__(self, model: Places, **admission: float) -> None:
        self.model, self.seen = model, Counter()
        config = SpeechConfig.model_validate({"admission": admission})
        self.engine = Engine(model, config, observer=self.seen, clock=asyncio.get_running_loop().time)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[list[AudioChunk]]] = {}

    async def ask(self, name: str, text: str = "", **fields: Any) -> None:
        """Begin a turn, and let its task ask for a place."""
        self.tasks[name] = asyncio.create_task(self._speak(name, text or f"This is turn {name}.", **fields))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _speak(self, name: str, text: str, **fields: Any) -> list[AudioChunk]:
        asked = UtteranceRequest(utterance_id=name, format=AudioFormat("L16", 16000), **({"priority": CALL} | fields))
        chunks = []
        async with self.engine.open(asked) as utterance:
            utterance.feed(text)
            utterance.end_text()
            async for chunk in utterance:
                if not chunks:
                    self.begun.append(name)
                chunks.append(chunk)
        return chunks

    async def ended(self) -> dict[str, str]:
        """Wait for all. Return the messages of those who failed."""
        results = await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        failed = {
            name: result for name, result in zip(self.tasks, results, strict=True) if not isinstance(result, list)
        }
        assert all(isinstance(error, Exhausted) for error in failed.values()), failed
        await self.engine.aclose()
        assert len(self.engine.admission) == self.seen.now_waiting == self.model.active == 0
        return {name: str(error) for name, error in failed.items()}


def admission_ms(chunks: list[AudioChunk]) -> float:
    return chunks[0].stages_ms.get("admission", 0.0)


async def test_a_turn_without_a_place_waits_for_one_and_its_stages_say_so() -> None:
    turns = Turns(Places(), wait_ms=1000)
    for name in "abc":
        await turns.ask(name)
    assert await turns.ended() == {}
    assert turns.begun == ["a", "b", "c"]
    waits = [admission_ms(task.result()) for task in turns.tasks.values()]
    assert waits == [0.0, pytest.approx(200, abs=1), pytest.approx(400, abs=1)]
    for at, task in enumerate(turns.tasks.values()):
        assert sum(task.result()[0].stages_ms.values()) == pytest.approx(200 * (at + 1), abs=1)
    assert turns.seen.admissions == [
        (pytest.approx(0.2, abs=1e-3), "admitted"),
        (pytest.approx(0.4, abs=1e-3), "admitted"),
    ]
    assert turns.seen.most_waiting == 2 and not turns.seen.refusals


async def test_calls_go_before_http_and_equals_by_arrival() -> None:
    turns = Turns(Places(), wait_ms=60_000)
    await turns.ask("first")
    for name, priority in (("http 1", HTTP), ("http 2", HTTP), ("call 1", CALL), ("dear", 9), ("call 2", CALL)):
        await turns.ask(name, priority=priority)
    assert await turns.ended() == {}
    assert turns.begun == ["first", "dear", "call 1", "call 2", "http 1", "http 2"]


async def test_nobody_takes_the_place_of_a_turn_that_has_just_been_called() -> None:
    """Between the call and the moment at which its task runs, the queue looked empty."""
    queue, lengths = AdmissionQueue(AdmissionConfig()), []
    ticket = Ticket(Playhead(), None, heard=False, came=asyncio.get_running_loop().time())
    waiting = asyncio.create_task(queue.wait(ticket))
    await asyncio.sleep(0)
    queue.ask_soon()
    asyncio.get_running_loop().call_soon(lambda: lengths.append(len(queue)))  # after the call, before the task
    await waiting
    assert lengths == [1] and len(queue) == 0


async def test_low_priority_is_slowed_down_and_does_not_starve() -> None:
    """The stated policy: one place of eight goes to who has waited longest."""
    turns = Turns(Places(), wait_ms=60_000)
    await turns.ask("first")
    for number in range(3):
        await turns.ask(f"http {number}", priority=HTTP)
    for number in range(30):  # calls come as fast as places become free, for ever
        await turns.ask(f"call {number}")
        await turns.ask(f"another call {number}")
        await asyncio.sleep(2 * CLAUSE_S)
    assert await turns.ended() == {}
    ranks = [turns.begun.index(f"http {number}") for number in range(3)]
    assert ranks == [8, 16, 24]


async def test_who_has_waited_for_the_longest_time_allowed_is_refused_with_the_reason() -> None:
    turns = Turns(Places(), wait_ms=150)
    await turns.ask("a")
    begun = asyncio.get_running_loop().time()
    await turns.ask("b")
    with pytest.raises(Exhausted) as refused:
        await turns.tasks["b"]
    assert asyncio.get_running_loop().time() - begun == pytest.approx(0.15, abs=0.011)
    assert refused.value.retry_after_s == RETRY_S
    assert await turns.ended() == {
        "b": "waited 150 ms for a place (engine.speech.admission.wait_ms): 1 places are taken"
    }
    assert turns.seen.refusals == ["waited"]
    assert [outcome for _, outcome in turns.seen.admissions] == ["refused"]


async def test_without_a_wait_turns_are_refused_at_once() -> None:
    turns = Turns(Places(), wait_ms=0)
    for name in "ab":
        await turns.ask(name)
    assert await turns.ended() == {"b": "1 places are taken"}
    assert turns.seen.refusals == ["waited"] and turns.seen.admissions == []


async def test_a_client_with_other_engines_is_refused_at_once() -> None:
    turns = Turns(Places(), wait_ms=60_000)
    await turns.ask("a")
    await turns.ask("b", at_once=True)
    await turns.ask("c")
    await turns.ask("d", at_once=True)  # even before the model is asked, since others wait already
    assert (await turns.ended()).keys() == {"b", "d"}
    assert turns.seen.refusals == ["at_once", "at_once"]


async def test_a_full_queue_refuses_who_would_be_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.pipeline.admission_queue.MOST_WAITING", 2)
    turns = Turns(Places(), wait_ms=60_000)
    await turns.ask("a")
    for name, priority in (("http 1", HTTP), ("http 2", HTTP), ("http 3", HTTP), ("call", CALL)):
        await turns.ask(name, priority=priority)
    failed = await turns.ended()
    assert failed.keys() == {"http 2", "http 3"}
    assert "2 turns wait for a place, as many as may" in failed["http 3"]
    assert turns.begun == ["a", "call", "http 1"]
    assert turns.seen.refusals == ["queue_full", "queue_full"]


async def test_a_turn_that_is_heard_goes_before_everybody_and_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.pipeline.admission_queue.MOST_WAITING", 3)
    turns = Turns(Places(refuses_later_clauses=True), wait_ms=100)
    await turns.ask("speaking", "One moment please. Your order is on its way to you.")
    for number in range(3):  # longer than they may wait
        await turns.ask(f"dear {number}", priority=9)
    failed = await turns.ended()
    assert failed.keys() == {f"dear {number}" for number in range(3)}
    assert [span.start_char for chunk in turns.tasks["speaking"].result() for span in chunk.spans][-1] > 40


async def test_a_turn_that_goes_on_from_another_engine_waits_even_longer_than_others() -> None:
    turns = Turns(Places(), wait_ms=50)
    await turns.ask("a")
    await turns.ask("moved", priority=10, at_once=True)
    assert await turns.ended() == {}


async def test_what_nobody_waits_for_comes_last_and_has_no_limit() -> None:
    turns = Turns(Places(), wait_ms=450)
    await turns.ask("a")
    await turns.ask("held", ahead=True, priority=9)
    await turns.ask("b")
    await turns.ask("http", priority=HTTP)
    assert await turns.ended() == {}
    assert turns.begun == ["a", "b", "http", "held"]
    assert admission_ms(turns.tasks["held"].result()) > 450


async def test_who_leaves_the_queue_leaves_nothing_behind() -> None:
    turns = Turns(Places(), wait_ms=60_000)
    for name in "abc":
        await turns.ask(name)
    turns.tasks["b"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await turns.tasks.pop("b")
    assert await turns.ended() == {}
    assert turns.begun == ["a", "c"]
    assert sorted(outcome for _, outcome in turns.seen.admissions) == ["admitted", "cancelled"]


async def test_closing_the_engine_ends_those_who_wait() -> None:
    turns = Turns(Places(), wait_ms=60_000)
    for name in "abc":
        await turns.ask(name)
    await turns.engine.aclose()
    results = await asyncio.gather(*turns.tasks.values(), return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert len(turns.engine.admission) == 0


async def test_a_burst_of_one_greeting_needs_one_place() -> None:
    turns = Turns(Places(), wait_ms=1000)
    await turns.ask("first")
    for number in range(50):
        await turns.ask(f"caller {number}", "Welcome to the shop.")
    assert await turns.ended() == {}
    assert len(turns.model.asked) == 2
    assert {round(admission_ms(turns.tasks[f"caller {number}"].result())) for number in range(1, 50)} <= {200, 400}


async def test_of_those_who_wait_one_at_a_time_asks_a_model_in_another_process() -> None:
    turns = Turns(Places(answers_s=0.001), wait_ms=60_000)
    for number in range(20):
        await turns.ask(f"turn {number}")
        await asyncio.sleep(0.0001)
    await asyncio.sleep(CLAUSE_S / 2)
    # Each as it came, and then one at a time, ten milliseconds apart.
    assert len(turns.model.refused) <= 19 + CLAUSE_S / 2 / 0.01
    assert await turns.ended() == {}
    assert turns.begun == [f"turn {number}" for number in range(20)]


async def test_places_that_are_freed_together_are_taken_one_answer_after_the_other() -> None:
    turns = Turns(Places(20, answers_s=0.001), wait_ms=60_000)
    for number in range(40):
        await turns.ask(f"turn {number}")
    assert await turns.ended() == {}
    last = max(admission_ms(task.result()) for task in turns.tasks.values())
    assert last < 1e3 * (CLAUSE_S + 21 * 0.001 + 0.01)


async def test_a_refused_draft_costs_no_more_than_its_wait() -> None:
    """The clause is drafted before it is known to be complete, the model refuses the draft, and then the clause."""
    turns = Turns(Places(), wait_ms=1000)
    await turns.ask("a")
    async with turns.engine.open(UtteranceRequest(utterance_id="b", format=AudioFormat("L16", 16000))) as utterance:
        utterance.feed("One moment please.")
        await asyncio.sleep(0.03)
        utterance.feed(" I look")
        chunk = await anext(aiter(utterance))
    assert chunk.stages_ms["token"] == pytest.approx(30, abs=1)
    assert chunk.stages_ms["admission"] == pytest.approx(170, abs=1)
    assert sum(chunk.stages_ms.values()) == pytest.approx(400, abs=1)
    assert await turns.ended() == {}


class StreamsText(Places):
    """Begins a clause before its text is whole."""

    streams_text = True

    async def synthesize(self, clause: ClauseRequest, playhead: Hearing) -> AsyncGenerator[PcmChunk, None]:
        if clause.more is not None and self.active < self.places:
            text = clause.text + "".join([piece async for piece in clause.more])
            clause = ClauseRequest(
                text=text, voice="", language="", speed=1.0, instruct="", first=True, line_rate=clause.line_rate
            )
        async with aclosing(super().synthesize(clause, playhead)) as chunks:
            async for chunk in chunks:
                yield chunk


async def test_a_clause_whose_text_still_comes_waits_too_and_loses_no_word() -> None:
    turns = Turns(StreamsText(), wait_ms=1000)
    await turns.ask("a")
    async with turns.engine.open(UtteranceRequest(utterance_id="b", format=AudioFormat("L16", 16000))) as utterance:
        for word in "I look for the number of your order and tell you.".split(" "):
            utterance.feed(f"{word} ")
            await asyncio.sleep(0.025)
        utterance.end_text()
        chunks = [chunk async for chunk in utterance]
    assert any(clause.more is not None for clause in turns.model.refused)
    assert len([span for chunk in chunks for span in chunk.spans]) == 11
    assert admission_ms(chunks) > 0
    assert await turns.ended() == {}


async def test_a_refused_turn_is_told_to_come_after_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_engine.pipeline.admission_queue.MOST_WAITING", 3)
    turns = Turns(Places(), wait_ms=60_000)
    for name in "abcd":
        await turns.ask(name)
    await asyncio.sleep(3.5 * CLAUSE_S)  # b and c have waited and been heard, and d has its place
    assert turns.begun == ["a", "b", "c"]
    for name in "efgh":
        await turns.ask(name)
    await asyncio.wait([turns.tasks["h"]])
    refusal = turns.tasks["h"].exception()
    assert isinstance(refusal, Exhausted)
    line_s = refusal.retry_after_s - RETRY_S
    assert 3 * CLAUSE_S / 2 < line_s < 3 * CLAUSE_S * 1.5, "e, f and g come first, each a clause after the other"
    assert set(await turns.ended()) == {"h"}
