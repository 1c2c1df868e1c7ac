import re

import pytest
from echo_model import Echo

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.feedback import JudgedReply, read_feedback
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.ratings import latest
from rl4dialog.features.serving.chat import Chat, ChatState, Settings
from rl4dialog.scores.scoring import ReplyScores

START = ChatState()


def chat_with(tmp_path, *models, **kwargs):
    return Chat(models or [Echo()], tmp_path / "feedback.jsonl", **kwargs)


def two(tmp_path):
    return chat_with(tmp_path, Echo("a"), Echo("b", "twice"))


def say(chat, state, text, persona="", *numbers, **settings):
    *_, last = chat.send(state, text, Settings(persona, *numbers, **settings))
    return last


def test_stopped_reply_was_said_as_far_as_it_came(tmp_path):
    chat, words = chat_with(tmp_path), iter([False, True, True, True])
    stopped = list(chat.send(START, "a b c d", Settings(), lambda: next(words)))[-1]
    assert stopped.turns == ["a b c d", "A B"]
    assert stopped.last and stopped.last.replies[0].details and not stopped.last.replies[0].finished
    nothing = next(chat.send(stopped, "c"))
    assert nothing.settled() == stopped.__class__(**{**vars(nothing), "exchanges": stopped.exchanges})
    assert say(chat, nothing, "d").turns == ["a b c d", "A B", "d", "D"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("  ",), "a message cannot be empty"),
        (("a<EOU>b",), "a text cannot contain <EOU>, which ends a turn"),
        (("a", "<EOU>"), "a text cannot contain <EOU>, which ends a turn"),
        (("a", "", 0), "settings.temperature: input should be greater than or equal to"),
        (("a", "", float("inf")), "settings.temperature: input should be a finite number, got inf"),
        (("a", "", True), "settings.temperature: input should be a valid number, got True"),
        (("a", "", None, 2.0), "settings.top_p: input should be less than or equal to 1, got 2.0"),
        (("a", "", None, None, 0), "settings.max_new_tokens: input should be greater than or equal to 1, got 0"),
        (("a", "", None, None, None, None, 1), "there is no model 1"),
        (("a", "", None, None, None, -1), "beta must be a number of at least 0, not -1"),
        (("a", "", None, None, None, float("nan")), "beta must be a number of at least 0, not nan"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_is_asked(tmp_path, args, message):
    model = Echo()
    with pytest.raises(RL4DialogError, match=re.escape(message)):
        say(chat_with(tmp_path, model), START, *args)
    assert model.asked == []


def test_beta_is_that_of_models_that_values_guide(tmp_path):
    guided, plain = Echo("a"), Echo("b")
    guided.beta = 4.0
    chat = chat_with(tmp_path, guided, plain)
    state = say(chat, START, "a", beta=8.0)
    assert state.settings.beta == 8.0 and chat.reset(state).settings.beta == 8.0
    assert [kwargs for _, _, kwargs in (*guided.asked, *plain.asked)] == [{"beta": 8.0}, {}]
    plain.generation_kwargs = {"do_sample": False}
    assert "b: no sampling, so the temperature has no effect." in chat.changed(START, Settings(temperature=0.5)).note
    one, other = (reply.details for reply in state.last.replies) if state.last else (None, None)
    assert one and other and one.advantages == [-1.0] and other.missing["advantages"] == "no values guide it"


def test_seed_gives_the_replies_of_the_terminal_and_others_to_the_second_model(tmp_path):
    from rl4dialog.features.serving.terminal import TerminalChat

    first, second, of_terminal = Echo("a"), Echo("b"), Echo()
    chat = chat_with(tmp_path, first, second, seed=7)
    say(chat, chat.choose(say(chat, START, "x"), 0), "y")
    terminal = TerminalChat(chat_with(tmp_path, of_terminal, seed=7), input, lambda text: None)
    terminal.take("x")
    terminal.take("y")
    seeds = [[seed for _, seed, _ in model.asked] for model in (first, second, of_terminal)]
    assert seeds[0] == seeds[2] and len({*seeds[0], *seeds[1]}) == 4


def test_better_reply_is_recorded_and_goes_on_in_both(tmp_path):
    chat = two(tmp_path)
    state = say(chat, START, "hi", "P")
    assert state.awaits_choice and state.turns == []
    assert [state.messages(i)[-1]["content"] for i in (0, 1)] == ["HI", "HI twice"]
    states = list(two(tmp_path).send(START, "p q"))
    lengths = [tuple(len(each.messages(i)[-1]["content"].split()) for i in (0, 1)) for each in states]
    assert lengths[:5] == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)] and lengths[-1] == (2, 3)
    with pytest.raises(RL4DialogError, match="choose one of the two replies first"):
        say(chat, state, "more")
    state = chat.choose(state, 1)
    assert state.turns == ["hi", "HI twice"]
    assert [state.messages(i)[-1]["content"] for i in (0, 1)] == ["HI twice"] * 2
    assert state.last and [state.last.origin(i) for i in (0, 1)] == ["the reply of 2: b", ""]
    (preference,) = read_feedback(tmp_path / "feedback.jsonl")
    assert (preference.kind, preference.chosen, preference.turns) == ("preference", 1, ["hi"])
    assert preference.replies == [JudgedReply("a", "HI"), JudgedReply("b", "HI twice")] and preference.persona == "P"
    with pytest.raises(RL4DialogError, match="nothing to choose"):
        chat.choose(state, 0)
    state = say(chat, state, "more")
    assert all(model.asked[-1][0] == "hi<EOU>HI twice<EOU>more <EOU>" for model in chat.models)
    state = chat.choose(state, None)
    assert state.turns[-1] == "MORE" and "Nothing was recorded" in state.note
    assert len(read_feedback(tmp_path / "feedback.jsonl")) == 1


def test_judgement_is_taken_back_on_the_page_and_in_the_file(tmp_path):
    chat, file = two(tmp_path), tmp_path / "feedback.jsonl"
    state = chat.choose(say(chat, START, "hi"), 1)
    state = chat.rate(state, 1, -1)
    state = chat.correct(state, 1, "Hello!")
    assert [one.kind for one in latest(read_feedback(file))] == ["preference", "rating", "correction"]
    with pytest.raises(RL4DialogError, match="no choice to take back"):
        chat.take_back_choice(state)  # while the conversation continues with a correction
    state = chat.correct(state, 1, "HI twice")
    assert state.turns == ["hi", "HI twice"] and state.last and state.last.origin(1) == ""
    state = chat.rate(state, 1, None)
    with pytest.raises(RL4DialogError, match="it has no rating"):
        chat.rate(state, 1, None)
    state = chat.take_back_choice(state)
    assert state.awaits_choice and latest(read_feedback(file)) == [] and len(read_feedback(file)) == 6
    state = chat.take_back_choice(chat.choose(state, None))
    assert state.awaits_choice and len(read_feedback(file)) == 6, "nothing was recorded, so nothing is withdrawn"


def test_correction_is_recorded_and_goes_on(tmp_path):
    chat = two(tmp_path)
    state = chat.correct(say(chat, START, "hi"), 1, " Hello! ")
    assert state.turns == ["hi", "Hello!"] and not state.awaits_choice
    state = say(chat, state, "more", "P")
    state = chat.correct(chat.choose(state, 0), 0, "Less.")
    first, _, last = read_feedback(tmp_path / "feedback.jsonl")
    assert (first.correction, first.turns, first.replies) == ("Hello!", ["hi"], [JudgedReply("b", "HI twice")])
    assert (last.correction, last.turns, last.persona) == ("Less.", ["hi", "Hello!", "more"], "P")
    assert last.replies == [JudgedReply("a", "MORE")] and state.turns[-1] == "Less."


@pytest.mark.parametrize("text", [" ", "a<EOU>", "Hello!"])
def test_correction_that_is_none_is_told(tmp_path, text):
    chat = chat_with(tmp_path)
    state = chat.correct(say(chat, START, "hi"), 0, "Hello!")
    with pytest.raises(RL4DialogError, match=r"a correction cannot be empty|cannot contain <EOU>|must differ"):
        chat.correct(state, 0, text)
    with pytest.raises(RL4DialogError, match="must differ"):
        chat.correct(say(chat, START, "hi"), 0, "HI")
    assert len(read_feedback(tmp_path / "feedback.jsonl")) == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda chat, state: chat.rate(state, 0, 1),
        lambda chat, state: chat.choose(state, 0),
        lambda chat, state: chat.correct(state, 0, "Hello!"),
    ],
)
def test_feedback_that_cannot_be_written_may_be_given_again(tmp_path, act, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    chat = two(tmp_path)
    state = say(chat, START, "hi")
    with monkeypatch.context() as patch:
        patch.setattr("rl4dialog.core.files.os.fsync", full)
        with pytest.raises(RL4DialogError, match=r"feedback\.jsonl cannot be written: No space left"):
            act(chat, state)
    assert read_feedback(tmp_path / "feedback.jsonl") == []
    act(chat, state)
    assert len(read_feedback(tmp_path / "feedback.jsonl")) == 1


def test_reward_is_shown_or_why_there_is_none(tmp_path):
    model = Echo()
    chat = chat_with(tmp_path, model, show_reward=True)
    state = say(chat, START, "hello")
    assert state.last and state.last.replies[0].reward == ("reward 2.500 (length 5.000, history 1.000)",)
    model.reward_fails, model.knows_tokens = True, False
    state = say(chat, state, "ab")
    assert state.last and state.last.replies[0].reward == (
        "available reward parts: length 2.000, history 3.000",
        "cannot compute overlap in this chat, which has no references and no partner: it needs a reference for 'AB'",
    )
    assert state.last.replies[0].details is None and state.last.replies[0].no_details == "the tokens are not known"
    assert state.turns[-1] == "AB"
    state = say(chat, chat.reset(state), "abc")
    assert state.last and state.last.replies[0].reward == ("available reward parts: length 3.000, history 1.000",)


def test_each_of_two_models_says_once_that_it_has_no_reward(tmp_path):
    models = Echo("a"), Echo("b")
    chat, state = chat_with(tmp_path, *models, show_reward=True), START
    for model in models:
        model.reward_fails = True
    said = []
    for text in ("a", "b"):
        state = say(chat, state, text)
        assert state.last
        said += ["cannot compute" in " ".join(reply.reward) for reply in state.last.replies]
        state = chat.choose(state, None)
    assert said == [1, 1, 0, 0]


def test_prompt_is_written_in_the_dialogue_format_and_rewards_read_its_history(tmp_path):
    model = Echo()
    model.dialogue_format = DialogueFormat(
        "chat_template", 3, lambda messages: "|".join(f"{each['role']}:{each['content']}" for each in messages)
    )
    read = []
    model.score = lambda prompt, reply, meta_info, on_error: read.append(meta_info) or ReplyScores([0.0], {})
    chat, state = chat_with(tmp_path, model, show_reward=True), START
    for text in ("a", "b", "c"):
        state = chat.correct(say(chat, state, text, "P"), 0, text * 2)
    assert model.asked[-1][0] == "system:P|user:b|assistant:bb|user:c"
    assert read[-1] == {"history": ["b", "bb", "c"], "persona": ["P"]}
    say(chat, chat.reset(state), "d")
    assert read[-1] == {"history": ["d"]}
