"""Greetings of routes are made before the first call, as the route speaks them."""

from gateway.call.turn_taking.speakable import lexicon
from talkspurt.config.settings import Config
from talkspurt.prompts import with_greetings
from tts_engine.pipeline.prompts import PromptConfig


def test_greetings_come_before_prompts_each_once_and_in_the_routes_words() -> None:
    assert lexicon(()) is None
    config = Config.model_validate(
        {
            "engine": {"speech": {"prompts": [{"text": "One moment."}, {"text": "Welcome."}], "ahead_s": 3}},
            "routes": {
                "plain": {"welcome_greeting": "Welcome."},
                "again": {"welcome_greeting": "Welcome."},
                "marked": {
                    "welcome_greeting": "<speak>Hi from <sub alias='talk spurt'>TS</sub> on nginx.</speak>",
                    "lexicon": {"nginx": "engine x"},
                    "voice": "heart",
                    "language": "en-GB",
                },
                "silent": {"welcome_greeting": " "},
                "none": {},
            },
        }
    )
    engine = with_greetings(config)
    assert engine.speech.prompts == (
        PromptConfig(text="Welcome."),
        PromptConfig(text="Hi from talk spurt on engine x.", voice="heart", language="en-GB"),
        PromptConfig(text="One moment."),
    )
    assert engine.speech.ahead_s == 3 and with_greetings(Config()).speech.prompts == ()
