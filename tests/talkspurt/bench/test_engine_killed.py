"""The readings of a server's metrics while one of its engines is gone."""

from talkspurt.bench.engine_killed import spoken_by

EXPOSITION = """
# TYPE talkspurt_engine_first_chunk_seconds histogram
talkspurt_engine_first_chunk_seconds_count{engine="tone",worker="1"} 7.0
talkspurt_engine_first_chunk_seconds_count{engine="embedded",worker="1"} 2.0
talkspurt_engine_first_chunk_seconds_sum{engine="tone",worker="1"} 0.7
cv_audio_first_byte_seconds_count{worker="0"} 3.0
"""


def test_an_engine_that_does_not_answer_has_spoken_nothing() -> None:
    assert spoken_by(EXPOSITION, 2) == [0, 9]
