import itertools

import pytest
from echo_model import Echo

from rl4dialog.core.errors import ConfigError, DataError, ModelError, PartnerError
from rl4dialog.core.feedback import read_feedback
from rl4dialog.core.types import PartnerReply
from rl4dialog.features.serving.replies import PartialReply
from rl4dialog.features.serving.teaching import Situation, Teaching


class Counter(Echo):
    def __init__(self, *texts):
        super().__init__()
        self._texts = itertools.cycle(texts)

    def stream(self, prompt, *args, **kwargs):
        self.asked.append((prompt, args[0] if args else None, kwargs))
        if self.fails_with:
            raise self.fails_with
        yield PartialReply(next(self._texts), (), True, True)


def talkative():
    numbers = itertools.count(1)
    return lambda said: PartnerReply(f"{said} {next(numbers)}", leaves=said == "stop")


def teach(tmp_path, model, *situations, **kwargs):
    file = tmp_path / "feedback.jsonl"
    return Teaching(model, situations, file, **kwargs), file


def shown(teaching, person="me"):
    found = teaching.current(person)
    assert found is not None
    return found


def test_accepted_and_corrected_replies_continue_the_conversation(tmp_path):
    model = Counter("yes", "no", "maybe")
    teaching, file = teach(tmp_path, model, Situation(["hi"], "i sing .", begin=talkative), Situation(["you"]))
    assert shown(teaching).replies[0].text == "yes" and shown(teaching) == shown(teaching)
    teaching.rate("me", shown(teaching).id, 0, 1)
    assert [*shown(teaching).turns] == ["hi", "yes", "yes 1"] and shown(teaching).replies[0].text == "no"
    teaching.correct("me", shown(teaching).id, 0, "well")
    assert [*shown(teaching).turns] == ["hi", "yes", "yes 1", "well", "well 2"]
    assert model.asked[-1][0] == "i sing .<EOU>yes 1<EOU>well<EOU>well 2 <EOU>"  # context_size is 3
    note = teaching.correct("me", shown(teaching).id, 0, "stop")
    assert note.endswith("The partner said: stop 3 The conversation is over.")
    assert [*shown(teaching).turns] == ["you"] and teaching.progress == "1 of 2 done."
    teaching.rate("me", shown(teaching).id, 0, 1)  # without a partner, the conversation is over
    assert teaching.is_done and teaching.current("me") is None
    assert [(each.kind, len(each.turns), each.persona) for each in read_feedback(file)] == [
        ("rating", 1, "i sing ."),
        ("correction", 3, "i sing ."),
        ("correction", 5, "i sing ."),
        ("rating", 1, None),
    ]
    assert teaching.given == read_feedback(file)


def test_rejected_reply_is_followed_by_another_one(tmp_path):
    teaching, file = teach(tmp_path, Counter("a", "a", "b"), Situation(["hi"], begin=talkative))
    teaching.rate("me", shown(teaching).id, 0, -1)
    assert shown(teaching).replies[0].text == "b" and [*shown(teaching).turns] == ["hi"]
    note = teaching.rate("me", shown(teaching).id, 0, -1)
    assert "The model has no other reply; write a better one" in note and shown(teaching).replies[0].text == "b"
    with pytest.raises(ConfigError, match="already rejected"):
        teaching.rate("me", shown(teaching).id, 0, -1)
    teaching.correct("me", shown(teaching).id, 0, "c")
    assert [*shown(teaching).turns] == ["hi", "c", "c 1"]
    assert [each.rating for each in read_feedback(file)] == [-1, -1, None]


def test_judged_situations_are_not_shown_again(tmp_path):
    # Two are alike, as in games with a secret.
    situations = [Situation([text], persona) for text, persona in zip("aabc", ("p", "p", "p", None), strict=True)]
    teaching, _ = teach(tmp_path, Counter("x", "y"), *situations)
    teaching.rate("me", shown(teaching).id, 0, 1)
    teaching.skip("me", shown(teaching).id)
    teaching.rate("me", shown(teaching).id, 0, -1)
    again, _ = teach(tmp_path, Counter("x"), *situations)
    assert again.progress == "2 of 4 done." and [*shown(again).turns] == ["a"]
    again.rate("me", shown(again).id, 0, 1)
    assert [*shown(again).turns] == ["c"]


def test_goal_is_in_the_prompt_and_can_be_changed(tmp_path):
    model = Counter("x", "y", "z")
    situation = Situation(["hi"], "i sing .", "food", talkative)
    teaching, file = teach(tmp_path, model, situation, Situation(["ho"], None, "work"), goals=["food", "work", "pet"])
    assert teaching.goal("me") == "food" and shown(teaching).persona == "i sing . goal : food"
    assert model.asked[-1][0] == "i sing . goal : food<EOU>hi <EOU>"
    teaching.set_goal("me", shown(teaching).id, " stars ")
    assert model.asked[-1][0] != "i sing . goal : stars<EOU>hi <EOU>"  # not before it is needed
    teaching.rate("me", shown(teaching).id, 0, -1)
    teaching.rate("me", shown(teaching).id, 0, 1)
    # The next goal is one that the conversation has not had.
    assert teaching.goal("me") in ("food", "work", "pet")
    teaching.skip("me", shown(teaching).id)
    assert shown(teaching).persona == "goal : work"
    for goal, error, message in (
        (" ", ConfigError, "cannot be empty; known goals are food, work, pet"),
        ("<EOU>", DataError, "cannot contain <EOU>"),
    ):
        with pytest.raises(error, match=message):
            teaching.set_goal("me", shown(teaching).id, goal)
    assert {each.persona for each in read_feedback(file)} == {"i sing . goal : stars"}
    again, _ = teach(tmp_path, model, situation, goals=["food"])
    assert again.is_done  # whatever goal was taught
    plain, _ = teach(tmp_path, model, Situation(["b"]))
    with pytest.raises(ConfigError, match="has not learned to follow any"):
        plain.set_goal("me", shown(plain).id, "food")


def test_judgement_is_kept_if_the_partner_or_the_model_fails(tmp_path):
    def failing():
        def answer(said):
            raise PartnerError(f"no answer to {said}")

        return answer

    model = Counter("x", "y")
    teaching, file = teach(tmp_path, model, Situation(["a"], begin=failing), Situation(["b"], begin=talkative))
    note = teaching.rate("me", shown(teaching).id, 0, 1)
    assert "The partner has no answer, so the conversation is over: no answer to x" in note
    id, model.fails_with = shown(teaching).id, ModelError("broken")
    with pytest.raises(ModelError, match="broken"):
        teaching.rate("me", id, 0, -1)
    assert len(read_feedback(file)) == 2 and shown(teaching).id == id
    teaching.correct("me", id, 0, "better")
    with pytest.raises(ModelError, match="broken"):
        teaching.current("me")
    teaching.skip("me", "")  # from a place in which the model cannot reply
    assert teaching.is_done and len(read_feedback(file)) == 3


def test_people_have_conversations_of_their_own(tmp_path):
    situations = [Situation([text], begin=talkative) for text in "ab"]
    teaching, _ = teach(tmp_path, Counter("x"), *situations)
    for person in ("one", "other"):
        teaching.correct(person, shown(teaching, person).id, 0, f"of {person}")
    assert [*shown(teaching, "one").turns] == ["a", "of one", "of one 1"]
    assert [*shown(teaching, "other").turns] == ["b", "of other", "of other 1"]
    with pytest.raises(ConfigError, match="out of date"):
        teaching.rate("one", shown(teaching, "other").id, 0, 1)


def test_seed_gives_the_same_replies(tmp_path):
    seeds = []
    for _ in range(2):
        model = Counter("x", "y")
        teaching, file = teach(tmp_path, model, Situation(["a"]), seed=1)
        teaching.rate("me", shown(teaching).id, 0, -1)
        seeds.append([seed for _, seed, _ in model.asked])
        file.unlink()
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 2
