"""``talkspurt doctor``, PostgreSQL away; with a real one see tests/peers/server/test_shared_store.py."""

from talkspurt.config.settings import load
from talkspurt.doctor.checks import CHECKS, check_postgres


def test_a_database_that_does_not_answer_is_told_with_the_reason() -> None:
    url = "postgresql://talkspurt:secret@127.0.0.1:1/talkspurt?sslmode=disable"
    config = load(None, environment={}, overrides={"postgres.url": url, "calls.folder": "calls"})
    found = check_postgres(config)
    assert found.state == "fail" and found.detail.endswith("postgres.url does not answer: ConnectionRefusedError")


def test_without_an_address_nobody_is_asked() -> None:
    assert check_postgres in CHECKS
    assert check_postgres(load(None, environment={})).state == "none"
