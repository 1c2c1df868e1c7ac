"""Situations of a run's datapool in which a person teaches its model, and the partner that answers there."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path

from rl4dialog.core.errors import DataError, PartnerError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.data.dialogue_text import goal_in, persona_in
from rl4dialog.data.splits import shuffled
from rl4dialog.envs.conversation import Conversation, ConversationRules, PartnersSide, first_prompts
from rl4dialog.envs.utterance_view import LEAVES_ACTION
from rl4dialog.inference.chat_agent import ChatAgent
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.partners.scripted import ReplayPartner
from rl4dialog.rollouts.conversing import partner_answers
from rl4dialog.serving.teaching import Answers, Situation, Teaching
from rl4dialog.training.building.conversations import AnyPartner, build_partner

_NO_LIMIT = 10**6


def build_teaching(
    loaded: LoadedPolicy, name: str, split: str, n: int | None, feedback: Path, seed: int | None = None
) -> Teaching:
    """Build what a person needs to teach a model.

    Situations are the samples of the datapool in random order; if some have a goal, only those. The order is the same
    every time without a seed, too. The run's partner continues the conversations. Without one, they continue with the
    next utterances of the sample, if it has any.
    """
    agent, samples = ChatAgent(loaded, name), loaded.data.samples(split)
    goals = [goal_in(sample.meta_data or {}) for sample in samples]
    if known := sorted({goal for goal in goals if goal is not None}):
        samples = [sample for sample, goal in zip(samples, goals, strict=True) if goal is not None]
    chosen = [samples[i] for i in shuffled(len(samples), f"teach/{seed or 0}")[:n]]
    conversations = _Conversations(loaded)
    return Teaching(agent, [_situation(each, conversations) for each in chosen], feedback, seed, known)


def _situation(sample: Sample, conversations: _Conversations) -> Situation:
    info = sample.meta_data or {}
    turns = [str(text) for text in info.get("history", [sample.prompt_or_input_text])]
    if not turns:
        raise DataError(f"sample {sample.id!r} has no utterance to reply to, so nobody can judge a reply there")
    has_partner = conversations.partner is not None or bool(info.get("continuation"))
    begin = functools.partial(conversations.begin, sample) if has_partner else None
    return Situation(turns, persona_in(info) or None, goal_in(info), begin)


class _Conversations:
    """Conversations with the run's partner, by the rules of the run; without a partner, those of the samples."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        self._loaded, config = loaded, loaded.config
        args = config.env.args if config.env is not None else None
        own = None if args is None else config.train_evaluation.partner or args.conversation_partner
        self.partner: AnyPartner | None = None
        self._rules = ConversationRules(max_turns=_NO_LIMIT)
        if args is None or own is None:
            return
        ends = args.end_when.model_dump()
        self._rules = ConversationRules(
            args.max_turns, "sample", args.max_partner_length, args.context_turns, end_when=ends
        )
        self.partner = build_partner(own, config, loaded.texts, is_evaluation=True)
        if isinstance(self.partner, PartnerService):
            loaded.begin_conversations(self.partner)

    def begin(self, sample: Sample) -> Answers:
        loaded, partner = self._loaded, self.partner
        service = partner if isinstance(partner, PartnerService) else None
        own = None if isinstance(partner, PartnerService) else copy.deepcopy(partner or ReplayPartner())
        lengths, frame = loaded.lengths, loaded.data.pools["train"].frame()
        end_of_turn = loaded.policy.end_of_turn
        conversation = Conversation(self._rules, end_of_turn, lengths.prompt, lengths.truncation_side, frame, own)
        conversation.begin(sample, derive_seed(loaded.config.seed or 0, "teach", str(sample.id)))
        return functools.partial(_answer, conversation, service)


def _answer(conversation: Conversation, service: PartnerService | None, said: str) -> PartnerReply:
    """The partner's answer to an utterance of the model; it leaves where the conversation ends by the run's rules."""
    if service is None:
        reply = conversation.ask(said)
    else:
        reply = conversation.heard(_from_outside(conversation, service, said))
    return replace(reply, leaves=conversation.settle(said, True, reply) is not None)


def _from_outside(conversation: Conversation, service: PartnerService, said: str) -> PartnerReply:
    prompts = first_prompts(service.side, [([*conversation.texts, said], conversation.meta_info)])
    (ids,), failures = partner_answers(service, prompts)
    if failures:
        raise PartnerError(failures[0])
    if [*ids] == [LEAVES_ACTION]:
        return PartnerReply(leaves=True)
    return PartnerReply(PartnersSide(service.side).said(ids))
