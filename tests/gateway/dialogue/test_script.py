"""The script dialogue: the walk on a virtual clock, the file's errors by line, and a call over the real loop."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gateway.config import DialogueConfig, RouteConfig
from gateway.dialogue.line import setup_of
from gateway.dialogue.messages import (
    Dtmf,
    End,
    Error,
    Inbound,
    Mark,
    MarkReached,
    Outbound,
    Play,
    Prompt,
    SendDigits,
    Text,
    Transfer,
    TurnEvent,
)
from gateway.dialogue.script import ScriptError, ScriptMachine, load, parse
from tests.gateway.dialogue.dialogue_fakes import RecordingSink, call, until
from tests.gateway.dialogue.test_hub import dialogues_of

DEMO = Path(__file__).parents[3] / "configs" / "demo-script.yaml"
NOON = datetime(2026, 11, 21, 15, 4)


class Call:
    """A machine, its clock, and what it has sent."""

    def __init__(self, text: str, **parameters: str) -> None:
        setup = setup_of(call(1, from_="+15551234", custom_parameters=parameters), codec="PCMU/8000", version="1")
        self.zones: list[ZoneInfo | None] = []
        self.machine = ScriptMachine(parse(text, "test.yaml"), setup, clock=self._clock)
        self.now = 100.0
        self.sent: list[Inbound] = self.machine.start(self.now)

    def _clock(self, zone: ZoneInfo | None) -> datetime:
        self.zones.append(zone)
        return NOON

    def hears(self, message: Outbound) -> None:
        self.sent += self.machine.on_message(message, self.now)

    def keys(self, digits: str) -> None:
        for digit in digits:
            self.hears(Dtmf(digit=digit))

    def spoken(self, event: str = "finished") -> None:
        """All speech so far comes to its end."""
        for message in list(self.sent):
            if isinstance(message, Text | Play):
                self.hears(TurnEvent(turn=message.turn, event=event))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.sent += self.machine.on_timer(self.now)

    def take(self) -> list[object]:
        """What was sent since the last look, short."""
        taken, self.sent = self.sent, []
        return [message.token if isinstance(message, Text) else message for message in taken]


MENU = """
steps:
  menu:
    - gather:
        say: Choose.
        timeout_s: 5
        digit_timeout_s: 2
        retries: 1
        retry: Again.
        digits: {"1": one, "12": twelve, "2": two, "*": star}
        prompts: [{match: 'tw(o|in)', goto: two}, {match: star, goto: star}]
        otherwise: bye
  one: [{say: One.}]
  twelve: [{say: Twelve.}]
  two: [{say: Two.}]
  star: [{say: Star.}]
  bye: [{say: Bye.}, hang_up]
"""


def test_key_that_begins_no_longer_branch_is_taken_at_once() -> None:
    made = Call(MENU)
    assert made.take() == ["Choose."]
    made.keys("2")
    assert made.take() == ["Two.", End()]
    assert made.machine.over


def test_key_that_begins_a_longer_branch_waits_for_more() -> None:
    for rest, said in (("2", "Twelve."), ("#", "One.")):
        made = Call(MENU)
        made.keys("1")
        assert made.take() == ["Choose."]
        made.keys(rest)
        assert made.take() == [said, End()]
    made = Call(MENU)
    made.keys("1")
    made.after(1.9)
    assert made.take() == ["Choose."]
    made.after(0.2)
    assert made.take() == ["One.", End()]


def test_waiting_begins_when_the_question_has_been_spoken() -> None:
    made = Call(MENU)
    made.after(60)
    assert made.take() == ["Choose."] and made.machine.deadline() is None
    made.sent = [Text(token="", turn="s1")]
    made.spoken()
    made.take()
    assert made.machine.deadline() == made.now + 5
    made.after(5)
    assert made.take() == ["Again.", "Choose."]


@pytest.mark.parametrize("event", ["finished", "interrupted", "failed"])
def test_no_input_asks_again_and_then_goes_on_otherwise(event: str) -> None:
    made = Call(MENU)
    made.spoken(event)
    made.after(5)
    made.spoken(event)
    made.after(5)
    assert made.take() == ["Choose.", "Again.", "Choose.", "Bye.", End()]


def test_turn_that_was_refused_does_not_stop_the_script() -> None:
    made = Call(MENU)
    made.hears(Error(description="too many turns", turn="s1"))
    assert made.machine.deadline() == made.now + 5


def test_unknown_input_counts_as_none() -> None:
    made = Call(MENU)
    made.keys("9#")
    made.keys("13")
    assert made.take() == ["Choose.", "Again.", "Choose.", "Bye.", End()]


def test_words_choose_a_branch_and_unknown_words_ask_again() -> None:
    made = Call(MENU)
    made.hears(Prompt(voice_prompt="the two", lang="en", last=False))
    made.hears(Prompt(voice_prompt="something else", lang="en", last=True))
    assert made.take() == ["Choose.", "Again.", "Choose."]
    made.hears(Prompt(voice_prompt="Number TWO please", lang="en", last=True))
    assert made.take() == ["Two.", End()]


def test_free_input_ends_with_its_terminator_its_length_or_its_time() -> None:
    text = """
    steps:
      ask:
        - gather: {max_digits: 4, terminator: "*", variable: pin, digit_timeout_s: 2, retries: 0, otherwise: none}
        - say: "{pin:spaced}"
      none: [{say: Nothing.}]
    """
    for keys, said in (("12*", "1 2"), ("1234", "1 2 3 4"), ("1#", "1 #"), ("*", "Nothing.")):
        made = Call(text)
        made.keys(keys)
        made.after(2)
        assert made.take() == [said, End()]


def test_every_other_action_is_carried_out_in_order() -> None:
    made = Call(
        """
    start: second
    timezone: Europe/Berlin
    steps:
      first: [hang_up]
      second:
        - set: {greeting: "Hi {name|you}"}
        - say: {text: "{greeting}, {from}{missing}.", voice: v, lang: en-GB, interruptible: none}
        - play: {source: "{name|x}.wav", loop: 2, interruptible: dtmf}
        - send_digits: 1w2
        - mark: here
        - say: It is {time} on {date}.
        - pause: 1.5
        - transfer: {target: "sip:{name}@x", handoff_data: "{name}"}
        - say: Nobody there.
        - hang_up: {handoff_data: done}
    """,
        name="Ada",
    )
    assert made.sent == [
        Text(token="Hi Ada, +15551234.", last=True, voice="v", lang="en-GB", interruptible="none", turn="s1"),
        Play(source="Ada.wav", loop=2, interruptible="dtmf", turn="s2"),
        SendDigits(digits="1w2"),
        Mark(name="here"),
    ]
    made.spoken()
    made.take()
    made.hears(MarkReached(name="other", cleared=False))
    assert made.take() == []
    made.hears(MarkReached(name="here", cleared=True))
    assert made.sent[0] == Text(token="It is 3:04 PM on Saturday, November 21.", last=True, turn="s3")
    assert made.zones == [ZoneInfo("Europe/Berlin")] * 2
    made.spoken()
    made.take()
    made.after(1.4)
    assert made.take() == []
    made.after(0.2)
    assert made.take() == [Transfer(target="sip:Ada@x", handoff_data="Ada")]
    made.hears(Error(description="cannot transfer"))
    assert made.take() == ["Nobody there.", End(handoff_data="done")]
    made.keys("1")
    made.after(100)
    assert made.take() == []


def test_transfer_waits_for_the_speech_before_it() -> None:
    made = Call("steps: {a: [{say: One moment.}, {transfer: '+1555'}]}")
    assert made.take() == ["One moment."]
    made.hears(TurnEvent(turn="s1", event="started"))
    assert made.take() == []
    made.hears(TurnEvent(turn="s1", event="finished"))
    assert made.take() == [Transfer(target="+1555")]


def test_circle_without_a_wait_ends_the_call() -> None:
    made = Call("steps: {a: [{goto: b}], b: [{goto: a}]}")
    assert made.take() == [End()]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", "t.yaml:1", "expected `steps:`"),
        ("- a", "t.yaml:1", "expected `steps:`"),
        ("steps: {", "t.yaml:1", "not YAML"),
        ("steps: {}", "t.yaml:1", "steps"),
        ("steps:\n  a: [{say: x}]\nstart: b", "t.yaml:3", "no step 'b'"),
        ("steps:\n  menu:\n    - goto: menue", "t.yaml:3", "steps.menu.0.goto: no step 'menue', did you mean 'menu'?"),
        ("steps:\n  a:\n    - gahter: {}", "t.yaml:3", "unknown key, did you mean 'gather'?"),
        ("steps:\n  a:\n    - say: x\n      goto: a", "t.yaml:3", "expected one action"),
        ("steps:\n  a:\n    - say:", "t.yaml:3", "say is empty"),
        ("steps:\n  a:\n    - say: 'Hi {name'", "t.yaml:3", "a brace that begins or ends no variable"),
        ("steps:\n  a:\n    - gather:\n        timeout: 5", "t.yaml:4", "did you mean 'timeout_s'?"),
        ("steps:\n  a:\n    - gather:\n        timeout_s: soon", "t.yaml:4", "number"),
        ("steps:\n  a:\n    - gather:\n        digits:\n          1: b", "t.yaml:5", "no step 'b'"),
        ("steps:\n  a:\n    - gather:\n        digits: {x: a}", "t.yaml:4", "pattern"),
        ("steps:\n  a:\n    - gather:\n        max_digits: 1\n        digits: {12: a}", "t.yaml:5", "longer than"),
        ("steps:\n  a:\n    - gather:\n        digits: {'1#': a}", "t.yaml:4", "holds the terminator"),
        ("steps:\n  a:\n    - gather:\n        prompts:\n        - {match: '(', goto: a}", "t.yaml:5", "regular"),
        ("steps:\n  a:\n    - pause: -1", "t.yaml:3", "greater than 0"),
        ("timezone: Mars/Base\nsteps: {a: [hang_up]}", "t.yaml:1", "no such time zone"),
        ("steps:\n  a: [hang_up]\n  a: [hang_up]", "t.yaml:2", "is here twice"),
        ("steps: &s\n  a: *s", "t.yaml:2", "nested too deeply"),
    ],
)
def test_wrong_file_names_the_line_and_what_was_expected(text: str, line: str, says: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(text, "t.yaml")
    assert any(place == line for place, _ in caught.value.problems)
    assert says in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ScriptError) as caught:
        parse("steps:\n  a:\n    - pause: -1\n    - gather: {retries: 99}", "t.yaml")
    assert [place for place, _ in caught.value.problems] == ["t.yaml:3", "t.yaml:4"]


def test_missing_file_is_a_script_error(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_demo_reads_the_clock_and_a_number_and_says_goodbye() -> None:
    made = Call(DEMO.read_text(), firstName="Ada")
    first, menu = made.take()
    assert first == "Hello Ada, this is talkspurt, speaking from your own machine."
    made.keys("1")
    assert made.take() == ["It is 3:04 PM on Saturday, November 21."]
    made.hears(TurnEvent(turn="s1", event="interrupted"))
    made.hears(TurnEvent(turn="s2", event="interrupted"))
    made.hears(TurnEvent(turn="s3", event="finished"))
    made.after(1)
    assert made.take() == [menu]
    made.keys("2")
    made.keys("4711#")
    assert made.take()[-1] == "You typed 4 7 1 1. Thank you."
    made.hears(TurnEvent(turn="s4", event="interrupted"))
    made.hears(TurnEvent(turn="s5", event="interrupted"))
    made.hears(TurnEvent(turn="s6", event="finished"))
    made.after(1)
    made.keys("0")
    assert made.take() == [menu, "Thank you for calling. Goodbye.", End()]


async def test_script_leads_a_call_over_the_real_loop(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("steps: {a: [{gather: {say: Press., timeout_s: 0.05, retries: 0}}, {say: Bye.}]}")
    dialogues, _, observers, _ = dialogues_of({"demo": RouteConfig(dialogue=DialogueConfig(script=str(path)))})
    sink = RecordingSink()
    link = await dialogues.attach(call(1), sink, codec="PCMU/8000")
    assert sink.messages == []  # the session has its link first
    await until(lambda: sink.messages)
    link.send(TurnEvent(turn="s1", event="finished"))
    await until(lambda: len(sink.messages) == 3)
    assert sink.messages[-1] == End()
    observers.inject(call(1).call_id, '{"type":"cancel"}')
    await link.aclose()
    link.send(Dtmf(digit="1"))
    await dialogues.aclose()
    assert len(sink.messages) == 4
