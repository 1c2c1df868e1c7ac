from __future__ import annotations

import math
from typing import Any

import pytest

from rl4dialog.core.protocols import BaseMetric, BatchedConversationReward, ConversationReward
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.inference.reward_validation.scores import (
    REFERENCES,
    Scores,
    baseline_scores,
    metric_scores,
    reward_scores,
    talk_of,
)
from rl4dialog.scores.composite import CompositeReward
from rl4dialog.scores.conversation import ConversationMetric, OutcomeReward
from rl4dialog.scores.diversity import DiversityMetric
from rl4dialog.scores.overlap import RougeMetric
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.rules import LengthMetric
from rl4dialog.scores.scoring import Scorer


def rated(*texts: str, n_given: int = 0, **meta_data: Any) -> RatedDialogue:
    turns = tuple(Turn(text, AGENT if i % 2 else PARTNER) for i, text in enumerate(texts))
    return RatedDialogue(Dialogue("d", turns, meta_data=meta_data, n_given=n_given), {"good": 1.0}, "d")


EOU = DialogueFormat("eou", 2)
TALKS = [talk_of(rated("a", "b c", "d", "e"), EOU), talk_of(rated("x", "y y y y"), EOU)]


def by_name(columns: Any) -> dict[str, Any]:
    return {column.name: column.problem or list(column.values) for column in columns}


def scored(reward: Any, **settings: Any) -> dict[str, Any]:
    return by_name(reward_scores(Scorer(as_parts(reward, "r"), **settings), TALKS))


def test_prompts_have_the_format_of_the_datapool() -> None:
    assert TALKS[0].prompts == ["a <EOU>", "b c<EOU>d <EOU>"]
    assert TALKS[0].meta_infos[1] == {"history": ["b c", "d"]}
    assert talk_of(rated("a", "b", "c", "d"), None).prompts[1] == "a\nb\nc\n"
    assert talk_of(rated("a", "b", persona="I am X."), EOU).prompts == ["I am X.<EOU>a <EOU>"]


def test_rated_reply_is_the_only_one_that_is_scored() -> None:
    talk = talk_of(rated("a", "b", "c", "d", n_given=3), EOU)
    assert (talk.replies, talk.prompts) == (["d"], ["b<EOU>c <EOU>"])


def test_baselines_are_lengths() -> None:
    assert by_name(baseline_scores(TALKS)) == {
        **{"baseline/words_per_reply": [1.5, 4.0], "baseline/words": [3.0, 4.0]},
        "baseline/replies": [2.0, 1.0],
    }


def test_metric_of_replies_is_the_mean_over_them() -> None:
    assert by_name(metric_scores("length", LengthMetric(), TALKS))["length/words"] == [1.5, 4.0]


def test_metric_without_scores_per_text_is_computed_per_dialogue() -> None:
    assert by_name(metric_scores("diversity", DiversityMetric(), TALKS))["diversity_metrics/distinct-1"] == [1.0, 0.25]


def test_metric_of_conversations_has_no_return_of_rated_ones() -> None:
    found = by_name(metric_scores("conversation", ConversationMetric(), TALKS))
    assert found["conversation/turns"] == [2.0, 1.0] and "conversation/return" not in found


def test_metric_with_references_cannot_be_computed() -> None:
    assert list(metric_scores("rouge", RougeMetric(), TALKS)) == [Scores("rouge", problem=REFERENCES)]


def test_metric_that_fails_is_named_with_its_error() -> None:
    class Failing(BaseMetric):
        def compute(self, *args: Any, **kwargs: Any) -> Any:
            raise ZeroDivisionError("no")

    assert by_name(metric_scores("x", Failing(), TALKS)) == {"x": "ZeroDivisionError: no"}


def test_reward_of_replies_is_the_mean_over_them() -> None:
    assert scored(lambda prompt_text, gen_text, ref_texts, meta_info: len(prompt_text)) == {"reward/r": [11.0, 7.0]}


def test_total_is_the_weighted_sum_of_the_parts() -> None:
    rewards = [
        {"id": "length_penalty", "args": {"max_length": 0, "per_word": 1.0}, "weight": 2.0},
        {"id": "regex", "name": "y", "args": {"pattern": "y"}, "weight": 10.0},
    ]
    found = scored(CompositeReward(rewards))
    assert found["reward/length_penalty"] == [-1.5, -4.0]
    assert found["reward"] == [-3.0, 2.0 * -4.0 + 10.0 * found["reward/y"][1]]


def test_total_with_a_part_that_needs_references_says_so() -> None:
    found = scored(CompositeReward([{"id": "rouge"}, {"id": "repetition_penalty"}]))
    assert found["reward/rouge"] == REFERENCES and found["reward"] == f"rouge: {REFERENCES}"
    assert found["reward/repetition_penalty"] == [0.0, -0.0]


class EveryTurn(ConversationReward):
    """Length of the conversation so far, and 100 at the end."""

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        return len(dialogue.turns) + 100.0 * over


class AtTheEnd(BatchedConversationReward):
    """One payment per turn of the agent, at the end."""

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[Any]:
        rows = zip(dialogues, overs, strict=True)
        return [[1.0] * len(dialogue.texts(AGENT)) if over else 0.0 for dialogue, over in rows]


def test_rewards_of_conversations_are_summed_over_the_turns() -> None:
    assert scored(EveryTurn()) == {"reward/r": [3 + 4 + 100.0, 2 + 100.0]}
    assert scored(AtTheEnd()) == {"reward/r": [2.0, 1.0]}


def test_reward_of_the_partner_cannot_be_computed() -> None:
    assert "comes from the partner" in scored(OutcomeReward())["reward/r"]


@pytest.mark.parametrize("on_error", ["raise", "mask"])
def test_failing_reward_is_an_error_or_a_gap(on_error: str) -> None:
    def failing(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        if gen_text == "e":
            raise RuntimeError("judge is down")
        return 1.0

    found = scored(failing, on_error=on_error)["reward/r"]
    if on_error == "raise":
        assert "RuntimeError: judge is down" in found
    else:
        assert math.isnan(found[0]) and found[1] == 1.0
