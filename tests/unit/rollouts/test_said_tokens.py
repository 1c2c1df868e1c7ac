"""Tokens of the agent's utterances, on the turns of a conversation."""

from __future__ import annotations

import numpy as np

from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.rollouts.conversing import SaidTokens, with_tokens

DIALOGUE = Dialogue(
    "x",
    (Turn("given", AGENT), Turn("u", PARTNER), Turn("a", AGENT, reward=9.0), Turn("u", PARTNER), Turn("b", AGENT)),
    n_given=2,
    meta_data={"word": "crane"},
)


def test_tokens_are_on_the_turns_that_the_agent_said() -> None:
    sparse = SaidTokens(np.array([4, 0]), np.float32([-0.1, -2.5]), np.float32([0.0, 0.3]))
    dense = SaidTokens([5, 6, 7], None, np.float32([0.1, 0.0, -0.7]))
    found = with_tokens(DIALOGUE, [sparse, dense], "plain", "9f2c", is_cut=True)
    given, _, first, _, second = found.turns
    assert given == DIALOGUE.turns[0] and not found.terminated and found.tokenizer == "9f2c"
    assert first == Turn("a", AGENT, reward=0.3, ids=(4, 0), log_probs=(-0.1, -2.5)), "all is paid on the last token"
    assert second == Turn("b", AGENT, ids=(5, 6, 7), token_rewards=(0.1, 0.0, -0.7))
    assert np.float32(found.turns[2].log_probs)[0] == sparse.log_probs[0], "the shortest number is still the same"  # type: ignore[index,call-overload]


def test_unscored_utterances_keep_their_reward() -> None:
    found = with_tokens(DIALOGUE, [SaidTokens([1]), SaidTokens([2])], "plain", "9f2c")
    assert [turn.reward for turn in found.turns] == [turn.reward for turn in DIALOGUE.turns] and found.terminated


def test_persona_of_the_prompt_is_kept() -> None:
    prompt = DialogueFormat("eou", None).prompt(["u"], "I like tea.")
    found = with_tokens(DIALOGUE, [SaidTokens([1]), SaidTokens([2])], prompt, "9f2c")
    assert found.meta_data == {"word": "crane", SYSTEM_KEY: "I like tea."}
