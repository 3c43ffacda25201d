"""The turn model's thread: what is asked, what is not answered, and what a fault costs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.recognition.turn_model import TurnModelThread
from tests.waiting import PATIENCE_S, until

FRAME = bytes(640)


@contextmanager
def running() -> Iterator[TurnModelThread]:
    thread = TurnModelThread(nice=0)
    try:
        yield thread
    finally:
        thread.close()


async def test_the_model_hears_the_last_eight_seconds_and_answers_on_the_loop() -> None:
    heard: list[NDArray[np.float32]] = []
    answers: list[tuple[float, int]] = []

    def judge(pcm: NDArray[np.float32]) -> float:
        heard.append(pcm)
        return 0.75

    with running() as thread:
        thread.use(judge)
        frames = [np.full(320, level, "<i2").tobytes() for level in range(500)]
        thread.look(frames, lambda probability: answers.append((probability, threading.get_ident())))
        await until(lambda: answers, "an answer")
    assert answers == [(0.75, threading.get_ident())]
    (pcm,) = heard
    assert pcm.shape == (128000,) and pcm.dtype == np.float32
    assert [pcm[0], pcm[-1]] == pytest.approx([100 / 32768, 499 / 32768])


async def test_what_waits_is_bounded_and_a_cancelled_look_makes_room() -> None:
    let_go = threading.Event()
    answers: list[int] = []

    def judge(pcm: NDArray[np.float32]) -> float:
        assert let_go.wait(PATIENCE_S)
        return 0.5

    with running() as thread:
        thread.use(judge)
        looks = [thread.look([FRAME], lambda _, n=number: answers.append(n)) for number in range(10)]  # type: ignore[misc]
        looks[3].cancel()
        let_go.set()
        await until(lambda: len(answers) == 7, "the answers")
        assert answers == [0, 1, 2, 4, 5, 6, 7], "two came too many, and one was not wanted any more"
        thread.look([FRAME], lambda _: answers.append(99))
        await until(lambda: answers[-1] == 99, "an answer to a later look")
    assert thread.dropped == {"busy": 2, "late": 1}


async def test_before_the_model_is_loaded_and_after_a_fault_there_is_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[float] = []

    def judge(pcm: NDArray[np.float32]) -> float:
        if len(pcm) == 320:
            raise RuntimeError("a fault")
        return 0.5

    with running() as thread:
        thread.look([FRAME], answers.append)
        thread.use(judge)
        with caplog.at_level(logging.ERROR):
            thread.look([FRAME], answers.append)
            thread.look([FRAME, FRAME], answers.append)
            await until(lambda: answers, "the answer that is possible")
    assert answers == [0.5] and thread.dropped == {"busy": 1, "failed": 1}
    assert [record.message for record in caplog.records] == ["turn model failed"]
