"""Check of the conversations between the initial policy and its partner."""

from __future__ import annotations

from itertools import pairwise

from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue
from rl4dialog.runs.summary import transcript
from rl4dialog.training.building.conversation_checks import check_conversations
from rl4dialog.training.building.environments import build_conversing
from rl4dialog.training.doctor.finding import Finding, NotApplicable
from rl4dialog.training.doctor.subject import Subject
from rl4dialog.training.random_state import random_states_kept

N_CONVERSATIONS = 8

# People repeat an utterance literally in 0.02 % of DailyDialog's turns.
ECHO_SHARE = 0.5


def conversation(subject: Subject) -> Finding:
    """Hold conversations with the partner, show one, and check that the partner takes part in them."""
    config = subject.config.model_copy(deep=True)
    if config.env is None or config.env.args.conversation_partner is None:
        raise NotApplicable("the run has no conversation partner")
    check_conversations(config, subject.texts)
    config.train_evaluation.partner, config.train_evaluation.score_predictions = None, True
    policy, scorer = subject.algorithm.policy, subject.scorer
    conversing = build_conversing(config, subject.texts, scorer)
    assert conversing is not None
    conversing.begin_run(policy)
    samples = subject.data.samples("train", N_CONVERSATIONS)
    seeds = [derive_seed(config.seed, "doctor", i) for i in range(len(samples))]
    with random_states_kept():
        talks = conversing(policy, samples, seeds)
    dialogues = [talk.dialogue for talk in talks]
    shown = f"{transcript(dialogues[0])}\n(the model {subject.model_state})"
    if errors := [talk.error for talk in talks if talk.partner_failed]:
        measured = f"the partner failed in {len(errors)} of {len(talks)} conversations: {errors[0]}"
        level = "warn" if config.env.args.partner_on_error == "mask" else "fail"
        return Finding(level, measured, "see the message; partner_on_error: mask leaves out failures")
    if config.env.args.max_turns > 1:
        if not any(dialogue.texts(PARTNER) for dialogue in dialogues):
            advice = "check that the partner's answers have a text, and that end_when.partner does not remove it"
            return Finding("warn", f"the partner never says anything\n{shown}", advice)
        if all(dialogue.ended_by == "partner" and len(dialogue.texts(AGENT)) <= 1 for dialogue in dialogues):
            advice = "check when the partner leaves, and the patterns of end_when"
            return Finding("warn", f"the partner leaves after the first turn of every conversation\n{shown}", advice)
    n_echoes, n_answers = (sum(each) for each in zip(*map(_echoes, dialogues), strict=True))
    if n_answers and n_echoes / n_answers > ECHO_SHARE:
        advice = "check the partner's model and format: it may read the conversation from the agent's side"
        return Finding("warn", f"{n_echoes} of the partner's {n_answers} answers repeat the agent\n{shown}", advice)
    return Finding("pass", shown)


def _echoes(dialogue: Dialogue) -> tuple[int, int]:
    """Number of answers of the partner that repeat the agent's utterance, and number of answers."""
    answers = [(said, answer) for said, answer in pairwise(dialogue.said) if answer.speaker == PARTNER]
    answers = [(said, answer) for said, answer in answers if said.speaker == AGENT and said.text]
    return sum(said.text == answer.text for said, answer in answers), len(answers)
