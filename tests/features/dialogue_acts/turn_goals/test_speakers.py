"""Who speaks to reach the goals of turns."""

import pytest
import torch
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.turn_goals.speakers import GoalTurn, LanguageModelSpeaker, ScriptedSpeaker
from rl4dialog.tasks.turn_goals import GOAL_SETS, TurnGoal


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer(marker="<EOU>")
    tokenizer.save_pretrained(folder)
    make_gpt2(tokenizer).save_pretrained(folder)
    return str(folder)


def test_scripted_speaker_says_each_of_its_questions():
    goals, speaker = GOAL_SETS["get_acquainted"], ScriptedSpeaker()
    turns = [GoalTurn(goal, ["hello ."], {}, seed) for goal in goals for seed in range(40)]
    said = speaker.speak(turns)
    assert set(said) == {question for goal in goals for question in goal.questions}
    assert speaker.speak(turns) == said


def test_goal_without_questions_is_refused():
    with pytest.raises(ConfigError, match=r"speaker 'scripted' .* 'be kind' has none; add questions"):
        ScriptedSpeaker().check([TurnGoal("be kind")])


def test_utterance_depends_on_the_goal_and_not_on_other_conversations(model):
    lengths = {"max_prompt_length": 40, "max_length": 6}
    speaker = LanguageModelSpeaker(model, **lengths, generation_kwargs={"do_sample": False})
    info = {"persona": ["w1 w2"]}
    turns = [GoalTurn(TurnGoal(f"w{i}"), ["w5", "w6", "w7"][: 1 + 2 * (i % 2)], info, i) for i in range(8)]
    together = speaker.speak(turns)
    assert [speaker.speak([turn])[0] for turn in turns] == together
    assert len(set(together)) > 1 and all(len(text.split()) <= 6 and "<EOU>" not in text for text in together)


def test_samples_are_drawn_by_the_global_generator(model):
    speaker = LanguageModelSpeaker(model, max_prompt_length=40, max_length=6)
    turns = [GoalTurn(TurnGoal("w3"), ["w5"], {}, 0)] * 4
    said = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        said.append(speaker.speak(turns))
    assert said[0] == said[1] != said[2]


def test_errors_name_the_speaker(model):
    with pytest.raises(ConfigError, match="speaker 'lm' cannot be 'builtin/tiny-gpt2', which has random weights"):
        LanguageModelSpeaker("builtin/tiny-gpt2")
    with pytest.raises(ConfigError, match=r"speaker 'lm' answers .* positions; lower env.args.max_utterance_length"):
        LanguageModelSpeaker(model, max_length=500)
