"""Situations of a run's datapool in which a person teaches its model, and the partner that answers there."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace
from pathlib import Path

import torch

from rl4dialog.core.errors import ConfigError, DataError, ModelError, PartnerError
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
from rl4dialog.policies.lora import ADAPTER_FOLDER, LoRA
from rl4dialog.policies.saving import save_language_model
from rl4dialog.rollouts.conversing import partner_answers
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.serving.teaching import Answers, Situation, Teaching
from rl4dialog.training.building.conversations import AnyPartner, build_partner
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.supervised import SupervisedExample, SupervisedLoss, build_examples

_NO_LIMIT = 10**6
TAUGHT = "taught"
"""Folder of the model that has learned while it was taught, beside the feedback file."""
_N_STEPS, _BATCH_SIZE, _LEARNING_RATE = 8, 8, 2e-3  # of a lesson


def build_teaching(
    loaded: LoadedPolicy,
    name: str,
    split: str,
    n: int | None,
    feedback: Path,
    seed: int | None = None,
    learn_every: int | None = None,
) -> Teaching:
    """Build what a person needs to teach a model.

    Situations are the samples of the datapool in random order; if some have a goal, only those. The order is the same
    every time without a seed, too. The run's partner continues the conversations. Without one, they continue with the
    next utterances of the sample, if it has any. With ``learn_every``, an `AdapterLearner` learns in between.
    """
    agent, samples = ChatAgent(loaded, name), loaded.data.samples(split)
    goals = [goal_in(sample.meta_data or {}) for sample in samples]
    if known := sorted({goal for goal in goals if goal is not None}):
        samples = [sample for sample, goal in zip(samples, goals, strict=True) if goal is not None]
    chosen = [samples[i] for i in shuffled(len(samples), f"teach/{seed or 0}")[:n]]
    conversations = _Conversations(loaded)
    learner = None if learn_every is None else AdapterLearner(loaded, feedback.parent, learn_every)
    return Teaching(agent, [_situation(each, conversations) for each in chosen], feedback, seed, known, learner)


class AdapterLearner:
    """Trains low-rank adapters of the model on the corrections of a session, a bounded number of steps at a time.

    The adapters start as those that were kept last, in ``taught/`` of the folder. Until the person keeps them, the
    model of before can be restored, and nothing is saved; a lesson that is interrupted changes nothing.
    """

    def __init__(self, loaded: LoadedPolicy, folder: Path, learn_every: int) -> None:
        folder = folder.absolute()
        self._folder = RunFolder(folder.parent.parent, folder.parent.name, folder.name, resume=True)
        self._policy, self._loaded, self._every = loaded.policy, loaded, learn_every
        if policy_class(loaded.config).guided:
            raise ConfigError(
                "--learn_every: values guide this model, and would not be those of another one; remove it"
            )
        self._lora = LoRA(self._policy.language_model, {"target_modules": "all-linear"})
        if (kept := self._folder.path(TAUGHT)).exists():
            self._lora.load(kept / ADAPTER_FOLDER)
        self._trained = [each for each in self._policy.language_model.parameters() if each.requires_grad]
        self._examples: list[SupervisedExample] = []
        self._n_new, self._kept = 0, self._weights()

    def _weights(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self._trained]

    def _restore(self, weights: list[torch.Tensor]) -> None:
        self._policy.weights_will_change()
        for parameter, saved in zip(self._trained, weights, strict=True):
            parameter.data.copy_(saved)

    def learn(self, prompt: str, reply: str) -> str:
        loaded, limits = self._loaded, self._loaded.lengths
        self._examples += build_examples(
            [Sample("taught", prompt, [reply])],
            loaded.tokenizer,
            end_of_turn=loaded.turn_marker,
            max_prompt_length=limits.prompt,
            max_reply_length=limits.reply,
            in_encoder=loaded.config.is_encoder_decoder,
        )[0]
        self._n_new += 1
        if self._n_new % self._every:
            return ""
        before, losses = self._weights(), []
        loss_of = SupervisedLoss(self._examples, loaded.tokenizer.pad_token_id)
        optimizer = torch.optim.AdamW(self._trained, lr=_LEARNING_RATE, weight_decay=0.0)
        self._policy.weights_will_change()
        try:
            for _ in range(_N_STEPS):
                loss = loss_of(self._policy, min(len(self._examples), _BATCH_SIZE))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
                optimizer.step()
                losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise ModelError("the loss is not finite, so nothing was learned")
        except BaseException:
            self._restore(before)
            raise
        return (
            f"Learned from {len(self._examples)} corrections: loss {losses[0]:.2f} to {losses[-1]:.2f}. /keep or /undo?"
        )

    def keep(self) -> str:
        with self._folder.replacing_folder(TAUGHT) as folder:
            save_language_model(self._policy.language_model, folder, self._lora)
            self._loaded.tokenizer.save_pretrained(folder)
        self._kept = self._weights()
        return f"The model was saved in {self._folder.path(TAUGHT)}; rl4dialog chat --model reads it."

    def undo(self) -> str:
        self._restore(self._kept)
        self._examples = []
        return "The model is as it was kept last. The corrections are still in the feedback file."


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
