"""The script dialogue: the walk on a virtual clock, the file's errors by line, and a call over the real loop."""

from datetime import datetime
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import pytest

from gateway.config import DialogueConfig, RouteConfig
from gateway.dialogue.line import setup_of
from gateway.dialogue.script import ScriptError, ScriptMachine, load, parse, spoken_digits
from gateway.seams.messages import (
    BothSilent,
    Cancel,
    Dtmf,
    End,
    Error,
    Inbound,
    Info,
    Mark,
    MarkReached,
    Outbound,
    Play,
    Prompt,
    SendDigits,
    Text,
    Transfer,
    TurnEvent,
    Withdrawn,
)
from tests.gateway.dialogue.dialogue_fakes import RecordingSink, call
from tests.gateway.dialogue.test_hub import dialogues_of
from tests.waiting import until

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
        """Return the messages sent since the last look, in short form."""
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
        - say: No answer.
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
    assert made.take() == ["No answer.", End(handoff_data="done")]
    made.keys("1")
    made.after(100)
    assert made.take() == []


def test_speech_that_fails_in_front_of_a_transfer_is_not_the_transfer_failing() -> None:
    made = Call("steps: {a: [{say: One moment.}, {transfer: '+1555'}, {say: Failed.}]}")
    assert made.take() == ["One moment.", Transfer(target="+1555")]
    made.hears(Error(description="the engine broke", turn="s1"))
    assert made.take() == []
    made.hears(Error(description="refused", field="target"))
    assert made.take() == ["Failed.", End()]


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
        ("steps:\n  a:\n    - hangup", "t.yaml:3", "hang_up, did you mean 'hang_up'?"),
        ("steps:\n  a:\n    - say:", "t.yaml:3", "say is empty"),
        ("steps:\n  a:\n    - say: 'Hi {name'", "t.yaml:3", "a brace is not part of a variable"),
        ("steps:\n  a:\n    - gather:\n        timeout: 5", "t.yaml:4", "did you mean 'timeout_s'?"),
        ("steps:\n  a:\n    - gather:\n        timeout_s: soon", "t.yaml:4", "number"),
        ("steps:\n  a:\n    - gather:\n        digits:\n          1: b", "t.yaml:5", "no step 'b'"),
        ("steps:\n  a:\n    - gather:\n        digits: {x: a}", "t.yaml:4", "pattern"),
        ("steps:\n  a:\n    - gather:\n        max_digits: 1\n        digits: {12: a}", "t.yaml:5", "longer than"),
        ("steps:\n  a:\n    - gather:\n        digits: {'1#': a}", "t.yaml:4", "contains the terminator"),
        ("steps:\n  a:\n    - gather:\n        prompts:\n        - {match: '(', goto: a}", "t.yaml:5", "regular"),
        ("steps:\n  a:\n    - pause: -1", "t.yaml:3", "greater than 0"),
        ("timezone: Mars/Base\nsteps: {a: [hang_up]}", "t.yaml:1", "unknown time zone"),
        ("steps:\n  a: [hang_up]\n  a: [hang_up]", "t.yaml:2", "is repeated"),
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


def test_a_missing_step_is_told_beside_other_mistakes_in_the_order_of_the_file() -> None:
    with pytest.raises(ScriptError) as caught:
        parse(
            """
steps:
  menu:
    - hangup
    - goto: mneu
    - gather: {retries: 99, digits: {1: sales, 2: menu}, prompts: [{match: x, goto: y}], otherwise: z}
    - set: {goto: nowhere}
start: begin
""",
            "t.yaml",
        )
    told = str(caught.value)
    assert [place for place, _ in caught.value.problems] == ["t.yaml:4", "t.yaml:5", *["t.yaml:6"] * 4, "t.yaml:8"]
    assert "did you mean 'hang_up'?" in told and "did you mean 'menu'?" in told and "nowhere" not in told


def test_missing_file_is_a_script_error(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_waiting_stops_while_the_caller_speaks() -> None:
    made = Call(MENU)
    made.spoken()
    made.take()
    made.after(4)
    made.hears(Info(name="clientSpeaking", value="on"))
    made.after(60)
    assert made.take() == []
    made.hears(Info(name="clientSpeaking", value="off"))
    made.after(4.9)
    assert made.take() == []
    made.after(0.2)
    assert made.take() == ["Again.", "Choose."]


def test_the_end_of_our_speech_starts_no_clock_while_the_caller_speaks() -> None:
    made = Call(MENU)
    made.hears(Info(name="clientSpeaking", value="on"))
    made.spoken("interrupted")
    made.after(60)
    assert made.take() == ["Choose."]
    made.hears(Prompt(voice_prompt="Two.", lang="en-US", last=True))
    assert made.take() == ["Two.", End()]


NUMBER = """
steps:
  ask:
    - gather:
        say: Number?
        min_digits: 3
        max_digits: 5
        spoken_digits: true
        retries: 1
        retry: Nothing.
        not_understood: I heard {prompt|keys}.
        prompts: [{match: 'no number', goto: none}]
    - say: Got {digits:spaced}.
  none: [{say: None.}]
"""


@pytest.mark.parametrize(
    ("words", "digits"),
    [
        ("It is four seven one one.", "4711"),
        ("47, one oh!", "4710"),
        ("Zero-zero-nine", "009"),
        ("1,234", "1234"),
        ("My order.", ""),
        ("", ""),
    ],
)
def test_digits_are_found_in_words(words: str, digits: str) -> None:
    assert spoken_digits(words) == digits


def test_spoken_number_is_taken_like_keys() -> None:
    made = Call(NUMBER)
    made.hears(Prompt(voice_prompt="It is four, seven, one one.", lang="en-US", last=True))
    assert made.take() == ["Number?", "Got 4 7 1 1.", End()]
    made = Call(NUMBER)
    made.hears(Prompt(voice_prompt="1234567", lang="en-US", last=True))
    assert made.take()[1] == "Got 1 2 3 4 5."


def test_words_that_are_not_understood_are_said_back() -> None:
    made = Call(NUMBER)
    made.hears(Prompt(voice_prompt="Banana", lang="en-US", last=True))
    assert made.take() == ["Number?", "I heard Banana.", "Number?"]
    made.hears(Prompt(voice_prompt="I have no number.", lang="en-US", last=True))
    assert made.take() == ["None.", End()]


ORDER = NUMBER.replace(
    "    - say: Got {digits:spaced}.",
    """    - say: Got {digits:spaced}.
    - gather: {say: "Is that right?", prompts: [{match: "yes|one", goto: none}]}""",
)


def said(words: str, *, continues: bool = False) -> Prompt:
    return Prompt(voice_prompt=words, lang="en-US", last=True, continues=continues)


def test_what_the_caller_adds_to_an_answer_is_part_of_it() -> None:
    made = Call(ORDER)
    made.spoken()
    made.hears(said("four seven"))
    assert made.take() == ["Number?", "I heard four seven.", "Number?"]
    made.hears(said("one", continues=True))
    assert made.take() == [Cancel(turn="s2"), Cancel(turn="s3"), "Got 4 7 1.", "Is that right?"]
    made.hears(TurnEvent(turn="s4", event="interrupted"))
    made.hears(said("one", continues=True))  # no answer to the next question, which had not been asked
    assert made.take() == [Cancel(turn="s5"), "Got 4 7 1 1.", "Is that right?"]
    made.hears(said("one"))
    assert made.take() == ["None.", End()]


def test_an_answer_is_not_continued_behind_a_key_or_the_end() -> None:
    made = Call(ORDER)
    made.hears(said("four seven"))
    made.keys("8")
    made.take()
    made.hears(said("four seven one", continues=True))
    assert made.take() == ["Got 4 7 1.", "Is that right?"]
    made.hears(said("yes"))
    assert made.take() == ["None.", End()]
    made.hears(said("no", continues=True))
    assert made.take() == []


def test_too_few_digits_are_not_understood_and_silence_is_nothing() -> None:
    made = Call(NUMBER)
    made.keys("12#")
    assert made.take() == ["Number?", "I heard keys.", "Number?"]
    made = Call(NUMBER)
    made.spoken()
    made.after(7)
    assert made.take() == ["Number?", "Nothing.", "Number?"]


def test_partial_words_branch_nowhere() -> None:
    made = Call(NUMBER)
    made.hears(Prompt(voice_prompt="1234", lang="en-US", last=False))
    assert made.take() == ["Number?"]


def test_demo_answers_keys_and_words() -> None:
    made = Call(DEMO.read_text(), firstName="Ada")

    def says(words: str) -> None:
        made.hears(Prompt(voice_prompt=words, lang="en-US", last=True))

    first, menu = made.take()
    assert first == "Hello Ada, this is talkspurt, speaking from your own machine."
    more = "What else can I do for you?"
    made.keys("1")
    assert made.take() == ["It is 3:04 PM on Saturday, November 21.", more]
    says("Can you repeat that?")
    assert made.take() == ["It is 3:04 PM on Saturday, November 21.", more]
    made.keys("2")
    (question,) = made.take()
    assert "order number" in str(question)
    made.keys("4711#")
    assert made.take() == ["Order 4 7 1 1 has been shipped and should arrive on Friday.", more]
    says("Where is my other order?")
    assert made.take() == [question]
    says("Five, two, three.")
    assert made.take()[0] == "Order 5 2 3 has been shipped and should arrive on Friday."
    says("I want to speak to a human.")
    assert "no one else is here" in str(made.take()[0])
    says("Bananas.")
    assert made.take() == ["I heard: Bananas. But I have no answer to that.", more]
    says("What can you do?")
    assert made.take() == [menu]
    says("Good-by.")
    assert made.take() == ["Thank you for calling. Goodbye.", End()]


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


LEAVES = """
    steps:
      ask:
        - gather: {say: "Sales or nothing?", prompts: [{match: sales, goto: sales}], otherwise: bye, retries: 0}
        - goto: bye
      sales: [{say: "One moment."}, {transfer: "+1555"}, {say: "No answer."}]
      bye: [{say: "Goodbye."}, {hang_up: {handoff_data: done}}]
"""


def leaving(words: str) -> Call:
    made = Call(LEAVES)
    made.spoken()
    made.take()
    made.hears(Prompt(voice_prompt=words, lang="en", last=True))
    return made


def withdraw(made: Call, turn: str, what: Literal["end", "transfer"]) -> None:
    made.hears(TurnEvent(turn=turn, event="interrupted"))
    made.hears(Withdrawn(what=what))


def test_a_withdrawn_hang_up_waits_for_the_caller_and_then_hangs_up() -> None:
    made = leaving("nothing")
    assert made.take() == ["Goodbye.", End(handoff_data="done")]
    withdraw(made, "s2", "end")
    made.hears(Prompt(voice_prompt="One moment please.", lang="en", last=True))
    assert made.take() == [] and not made.machine.over
    made.after(5.9)
    assert made.take() == []
    made.after(0.2)
    assert made.take() == [End(handoff_data="done")]


def test_a_caller_who_withdraws_a_hang_up_may_answer_the_last_question() -> None:
    made = leaving("nothing")
    made.take()
    withdraw(made, "s2", "end")
    made.hears(Prompt(voice_prompt="Sales, please.", lang="en", last=True))
    assert made.take() == ["One moment.", Transfer(target="+1555")]
    withdraw(made, "s3", "transfer")
    made.after(6.1)
    assert made.take() == [Transfer(target="+1555")]
    made.hears(Error(description="cannot transfer"))
    assert made.take() == ["No answer.", End()]
    withdraw(made, "s4", "end")
    made.after(6.1)
    assert made.take() == [End()]


def test_a_script_may_choose_how_it_transfers() -> None:
    made = Call("steps: {a: [{transfer: {target: '+1555', mode: bridge}}]}")
    assert [each.mode for each in made.sent if isinstance(each, Transfer)] == ["bridge"]


def test_a_script_may_commit_its_hang_up_and_its_transfer() -> None:
    made = Call("steps: {a: [{transfer: {target: '+1555', commit: true}}, {hang_up: {commit: true}}]}")
    assert made.take() == [Transfer(target="+1555", commit=True)]
    made.hears(Error(description="cannot transfer"))
    assert made.take() == [End(commit=True)]


def test_a_gather_asks_again_when_both_sides_have_been_silent() -> None:
    made = Call('steps: {a: [{gather: {say: Press., retries: 1, retry: "Hello?"}}, {say: Bye.}]}')
    made.spoken()
    made.take()
    made.hears(BothSilent(seconds=4.0))
    made.spoken()
    assert made.take() == ["Hello?", "Press."]
    made.hears(BothSilent(seconds=4.0))
    assert made.take() == ["Bye.", End()]
