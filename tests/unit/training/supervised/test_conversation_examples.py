"""A dialogue is learned as a rollout reads and says it: the same ids, in the same rows, with a loss on the agent's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from conversations import Format, built
from tiny import make_env

from rl4dialog.core.types import Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import dialogue_samples
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.replay import ReplayPartner
from rl4dialog.training.supervised.examples import IGNORED_LABEL, build_examples, encode_reply

LINES = ["I am fine , thanks .", "Do you like tea ?", "no , i do not .", "It's 7 o'clock", "the sea", "why ?", "oh"]
CASES = [
    ("eou", "byte_level"),
    ("chatml", "llama"),
    ("llama2", "unigram"),
    ("gemma", "byte_level"),
    ("zephyr", "llama"),
]

RULES: list[dict[str, Any]] = [
    {},
    {"max_partner_length": 4},
    {"end_when": {"partner": ["(the )?sea.*"]}},
    {"end_when": {"agent": ["^o"]}},
    {"max_partner_length": 6, "context_turns": 3, "end_when": {"partner": ["why"], "agent": ["sea$"]}},
]


def dialogues(form: Format, n: int, length: int) -> list[Sample]:
    generator = random.Random(0)
    told = [
        Dialogue(i, tuple(Turn(generator.choice(LINES), j % 2) for j in range(generator.randint(2, length))))
        for i in range(n)
    ]
    return dialogue_samples(told, form.dialogue, "dialogues")


def rolled_out(sample: Sample, form: Format, **limits: Any) -> list[tuple[list[int], list[int]]]:
    """Prompts and replies of a rollout in which the agent says what the dataset says, until it is over."""
    texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]  # type: ignore[index]
    env = make_env(
        form.tokenizer,
        end_of_turn=form.end,
        samples=[sample],
        reward_parts=[],
        partner=ReplayPartner(),
        max_turns=20,
        frame=form.dialogue.frame(),
        vocab_size=len(form.tokenizer),
        max_episode_length=40,
        **{"max_prompt_length": 400, **limits},
    )
    view, found = UtteranceView(env), []
    view.reset(options={"sample": sample})
    for i, text in enumerate(texts):
        prompt = env.state.prompt_ids
        reply = encode_reply(form.tokenizer, text, form.marker, 40, sample.prompt_or_input_text)
        found.append((prompt, reply))
        *_, over, _, info = view.step(np.array([*reply, *[-1] * (40 - len(reply))]))
        assert info["gen_text"] == text and (over or i + 1 < len(texts))
        if over:
            break
    return found


def rows_of(turns: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of turns, one row as long as prompts continue what was before them."""
    rows: list[tuple[list[int], list[int]]] = []
    for prompt, reply in turns:
        goes_on = bool(rows) and prompt[: len(rows[-1][0])] == rows[-1][0]
        ids, labels = rows.pop() if goes_on else ([], [])
        rows.append(([*prompt, *reply], [*labels, *[IGNORED_LABEL] * (len(prompt) - len(ids)), *reply]))
    return rows


def learned_rows(
    sample: Sample, form: Format, max_prompt_length: int = 400, **rules: Any
) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of the examples of a sample."""
    examples, _ = build_examples(
        [sample],
        form.tokenizer,
        end_of_turn=form.marker,
        max_prompt_length=max_prompt_length,
        max_reply_length=40,
        frame=form.dialogue.frame(),
        rules=ConversationRules(**rules),
    )
    return [(example["input_ids"], example["labels"]) for example in examples]


@pytest.mark.parametrize("limits", [{}, {"max_prompt_length": 60}, {"context_turns": 3}], ids=["all", "long", "turns"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_are_those_of_a_rollout(name: str, kind: str, limits: dict[str, int]) -> None:
    form = built(name, kind)
    samples = dialogues(form, 8, 10)
    n_rows = 0
    for sample in samples:
        learned = learned_rows(sample, form, **limits)
        assert learned == rows_of(rolled_out(sample, form, **limits))
        n_rows += len(learned)
    assert n_rows == len(samples) if not limits else n_rows > len(samples)


@pytest.mark.parametrize("rules", RULES, ids=["markup", "length", "partner ends", "agent ends", "all"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_partners_texts_are_those_of_a_rollout(name: str, kind: str, rules: dict[str, Any]) -> None:
    form = built(name, kind)
    markup, n_changed = form.dialogue.frame().markup, 0
    for i, sample in enumerate(dialogues(form, 8, 10)):
        assert sample.meta_data is not None
        plain = learned_rows(sample, form)
        continuation = sample.meta_data["continuation"]
        continuation[::2] = [f"{text}{markup[i % len(markup)]} tea" for text in continuation[::2]]
        learned = learned_rows(sample, form, **rules)
        assert learned == rows_of(rolled_out(sample, form, **rules))
        n_changed += learned != plain
    assert n_changed > 2


def test_encoders_have_one_example_per_turn() -> None:
    form = built("eou", "byte_level")
    for sample in dialogues(form, 6, 9):
        examples, _ = build_examples(
            [sample],
            form.tokenizer,
            end_of_turn=form.marker,
            max_prompt_length=400,
            max_reply_length=40,
            in_encoder=True,
            frame=form.dialogue.frame(),
        )
        found = [(example["input_ids"], example["labels"]) for example in examples]
        rolled = rolled_out(sample, form)
        # A decoder starts its reply alone, and not after the prompt.
        texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]  # type: ignore[index]
        assert [labels for _, labels in found] == [encode_reply(form.tokenizer, text, form.marker) for text in texts]
        assert found[0][0] == rolled[0][0] and len(found) == len(rolled)


def test_loss_on_all_learns_what_the_partner_says_too() -> None:
    form = built("eou", "byte_level")
    sample = dialogues(form, 1, 9)[0]
    kwargs: dict[str, Any] = {"max_prompt_length": 400, "max_reply_length": 40, "frame": form.dialogue.frame()}
    (example,), _ = build_examples([sample], form.tokenizer, end_of_turn=form.marker, loss_on="all", **kwargs)
    assert example["labels"] == example["input_ids"]
