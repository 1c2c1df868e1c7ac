"""Dialogues without an environment."""

from __future__ import annotations

import numpy as np
import pytest

from rl4dialog.envs.dialogue_acts import DialogueActEnv
from rl4dialog.tasks.dialogue_acts.acts import GENERAL, INFORM, REQ_MORE, REQUEST, DialogueAct
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.ontology import Domain, Ontology
from rl4dialog.tasks.dialogue_acts.rule_policy import RulePolicy
from rl4dialog.tasks.dialogue_acts.simulation import corpus_dialogue, simulate
from rl4dialog.tasks.dialogue_acts.templates import Templates
from rl4dialog.tasks.town_guide.world import town_guide

CAFE = Ontology([Domain("cafe", informable=("area",), requestable=("phone",))])
ENTITIES = [{"name": "red cup", "area": "north", "phone": "1"}, {"name": "blue cup", "area": "south", "phone": "2"}]
GOAL = Goal("1", {"cafe": DomainGoal({"area": "north"}, requests=("phone",))})


class Silent:
    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        return [DialogueAct(REQ_MORE, GENERAL)]


@pytest.fixture
def lexicalizer() -> Lexicalizer:
    return Lexicalizer(CAFE, Database(CAFE, {"cafe": ENTITIES}))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_dialogue_ends_when_the_user_leaves(lexicalizer: Lexicalizer) -> None:
    user = AgendaUser(CAFE)
    exchanges = simulate(RulePolicy(CAFE, lexicalizer), user, CAFE, lexicalizer, GOAL, rng())
    assert user.is_over and user.is_complete
    assert [list(map(str, exchange.user)) for exchange in exchanges] == [
        ["cafe-inform(area=north)"],
        ["cafe-request(phone)"],
    ]
    assert list(map(str, exchanges[-1].said)) == ["cafe-inform(name=red cup)", "cafe-inform(phone=1)"]
    assert exchanges[-1].chosen == (DialogueAct(INFORM, "cafe", "name", "1"), DialogueAct(INFORM, "cafe", "phone", "1"))


def test_dialogue_ends_after_max_turns(lexicalizer: Lexicalizer) -> None:
    user = AgendaUser(CAFE)
    assert len(simulate(Silent(), user, CAFE, lexicalizer, GOAL, rng(), max_turns=3)) == 3
    assert not user.is_complete


def test_agent_hears_what_errors_leave(lexicalizer: Lexicalizer) -> None:
    deaf = SemanticErrors(1.0, {}, {})
    exchanges = simulate(Silent(), AgendaUser(CAFE), CAFE, lexicalizer, GOAL, rng(), max_turns=2, errors=deaf)
    assert all(exchange.user and not exchange.heard for exchange in exchanges)


def test_corpus_has_what_was_understood_and_said_and_its_words(lexicalizer: Lexicalizer) -> None:
    exchanges = simulate(RulePolicy(CAFE, lexicalizer), AgendaUser(CAFE), CAFE, lexicalizer, GOAL, rng())
    plain = corpus_dialogue("7", GOAL, exchanges)
    assert (plain.id, plain.goal) == ("7", GOAL)
    assert plain.turns[0].user_text == plain.turns[0].system_text == ""
    worded = corpus_dialogue("7", GOAL, exchanges, Templates(CAFE, Database(CAFE, {"cafe": ENTITIES})))
    last = worded.turns[-1]
    assert last.user == (DialogueAct(REQUEST, "cafe", "phone"),)
    assert last.user_text == "What is the phone number of the cafe?"
    assert last.system_text == "There is a cafe called red cup, with phone number 1."


def test_dialogue_is_that_of_the_environment() -> None:
    env = DialogueActEnv(town_guide, {"n_dialogues": 40})
    world = town_guide(n_dialogues=40)
    lexicalizer = Lexicalizer(world.ontology, world.database)
    policy = RulePolicy(world.ontology, lexicalizer)
    user = AgendaUser(world.ontology, places=world.places)
    for goal in world.goals["train"][:10]:
        env.reset(seed=3, options={"goal": goal})
        said, is_over = [], False
        while not is_over:
            acts = policy.act(env.dialogue.belief, env.dialogue.heard)
            _, _, is_over, _, _ = env.step(world.system_acts.encode(acts))
            said.append(sorted(env.lexicalizer.say(acts, BeliefState(world.ontology)).acts))
        exchanges = simulate(policy, user, world.ontology, lexicalizer, goal, rng(3))
        assert len(exchanges) == len(said)
        assert env.outcome().success == user.is_complete is True
