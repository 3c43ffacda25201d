"""An engine of a test may wait for a processor for longer than callers would for its sound."""

import pytest


@pytest.fixture(autouse=True)
def no_limit_on_the_time_without_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the limit away. Tests of it set their own."""
    monkeypatch.setattr("tts_engine.service.server.AUDIO_S", 600.0)
