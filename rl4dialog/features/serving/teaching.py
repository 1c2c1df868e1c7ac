"""Teaching a model in conversations: it replies, a person accepts, rejects or corrects, and the conversation goes on.

The loop of convogym's ActiveGym (https://github.com/af1tang/convogym), in which a person chooses goals and corrects
replies; here, the judgements are written to a feedback file, and learned afterwards or, by an `AdapterLearner`, in
between.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rl4dialog.core.errors import ConfigError, DataError, ModelError, RL4DialogError
from rl4dialog.core.feedback import Feedback, JudgedReply, QueuedReplies, queue_id, read_feedback
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.data.dialogue_text import goal_in, persona_in, with_goal, without_goal
from rl4dialog.data.ratings import latest
from rl4dialog.data.splits import shuffled
from rl4dialog.envs.conversation import Conversation, ConversationRules
from rl4dialog.features.serving.chat import ChatAgent
from rl4dialog.features.serving.judging import Judging
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.partners.scripted import ReplayPartner
from rl4dialog.policies.lora import ADAPTER_FOLDER, LoRA
from rl4dialog.policies.saving import save_language_model
from rl4dialog.rollouts.conversing import partner_replies
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.building.conversations import AnyPartner, build_partner, members_of
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.supervised import SupervisedExample, SupervisedLoss, build_examples

_MAX_TRIES = 8  # replies that are generated to find one that was not rejected yet
_NO_LIMIT = 10**6
TAUGHT = "taught"
"""Folder of the model that has learned while it was taught, beside the feedback file."""
_N_STEPS, _BATCH_SIZE, _LEARNING_RATE = 8, 8, 2e-3  # of a lesson
Answers = Callable[[str], PartnerReply]  # answers an utterance of the model, as the next one of a conversation


@dataclass(frozen=True)
class Situation:
    """A place in a conversation at which a person begins to teach."""

    turns: Sequence[str]
    persona: str | None = None
    goal: str | None = None
    begin: Callable[[], Answers] | None = None  # begins a conversation with the partner, if there is one

    @property
    def place(self) -> tuple[str, ...]:
        """What identifies the situation in a feedback file."""
        return (self.persona or "", *self.turns)


@dataclass
class _Lesson:
    """The conversation of a person about a situation."""

    situation: Situation
    turns: list[str]
    goal: str | None
    answers: Answers | None = None
    goals_so_far: set[str | None] = field(default_factory=set)
    reply: str | None = None
    rejected: set[str] = field(default_factory=set)

    @property
    def persona(self) -> str | None:
        persona = self.situation.persona
        return persona if self.goal is None else with_goal([persona] if persona else [], self.goal)


class Teaching(Judging[Situation]):
    """Situations in which a person teaches a model, without those that are judged in the feedback file.

    An accepted or corrected reply continues the conversation with the partner's answer. After a rejected one, the model
    replies again. Its prompts have goals if there are any to choose from.
    """

    hint = "Rate a reply up, or correct it, to continue the conversation with it. Rate it down to see another one."

    def __init__(
        self,
        model: ChatAgent,
        situations: Sequence[Situation],
        feedback: Path,
        seed: int | None = None,
        goals: Sequence[str] = (),
        learner: AdapterLearner | None = None,
    ) -> None:
        known = latest(read_feedback(feedback)) if feedback.exists() else []
        super().__init__(_not_judged(situations, known), len(situations), feedback, known)
        self._model, self._seed, self.goals, self.learner = model, seed, tuple(goals), learner
        self._lessons: dict[str, _Lesson] = {}
        self._n_asked = 0

    def current(self, person: str) -> QueuedReplies | None:
        if (lesson := self._lesson(person)) is None:
            return None
        if lesson.reply is None:
            lesson.reply = self._reply(lesson)
        reply, persona = lesson.reply, lesson.persona
        id, judged = queue_id(persona, lesson.turns, [reply]), [JudgedReply(self._model.name, reply)]
        return QueuedReplies(id, [*lesson.turns], judged, persona, "teach")

    def goal(self, person: str) -> str | None:
        lesson = self._lesson(person)
        return None if lesson is None else lesson.goal

    def rate(self, person: str, id: str, index: int, rating: int | None) -> str:
        lesson = self._lesson(person)
        if rating == -1 and lesson is not None and lesson.reply in lesson.rejected:
            raise ConfigError("this reply is already rejected; write a better one, or go to the next situation")
        return super().rate(person, id, index, rating)

    def correct(self, person: str, id: str, index: int, correction: str) -> str:
        self._model.dialogue_format.check_said(correction)
        prompt = self._prompt(lesson) if (lesson := self._lesson(person)) is not None else ""
        note = super().correct(person, id, index, correction)  # it is in the file before anything is learned
        return note if self.learner is None else f"{note} {self.learner.learn(prompt, correction.strip())}".rstrip()

    def skip(self, person: str, id: str) -> str:
        """Go to the next situation, also from one in which the model cannot reply."""
        lesson = self._lesson(person)
        if lesson is not None and lesson.reply is not None:
            self._shown(person, id)
        self._finish(person)
        return ""

    def set_goal(self, person: str, id: str, goal: str) -> str:
        """Let the model reply to another goal, one of :attr:`goals` or a new one."""
        if not self.goals:
            raise ConfigError("the samples have no goals, so the model has not learned to follow any")
        self._shown(person, id)
        goal, lesson = goal.strip(), self._lesson(person)
        assert lesson is not None
        self._model.dialogue_format.check_said(goal)
        if not goal:
            raise ConfigError(f"a goal cannot be empty; known goals are {', '.join(self.goals)}")
        lesson.goal, lesson.reply, lesson.rejected = goal, None, set()
        return f"This is a reply to the goal {goal}."

    def _after(self, person: str, feedback: Feedback) -> str:
        lesson = self._lesson(person)
        assert lesson is not None and lesson.reply is not None
        if feedback.rating == -1:
            return self._reject(lesson)
        said = lesson.reply if feedback.correction is None else feedback.correction
        try:
            if lesson.answers is None and lesson.situation.begin is not None:
                lesson.answers = lesson.situation.begin()
            answer = PartnerReply(leaves=True) if lesson.answers is None else lesson.answers(said)
        except RL4DialogError as error:
            self._finish(person)
            return f"The partner has no answer, so the conversation is over: {error}"
        if answer.leaves or answer.text is None:
            self._finish(person)
            return f"The partner said: {answer.text} The conversation is over." if answer.text else ""
        lesson.turns += [said, answer.text]
        lesson.goals_so_far.add(lesson.goal)
        lesson.goal, lesson.reply, lesson.rejected = self._next_goal(lesson), None, set()
        return ""

    def _reject(self, lesson: _Lesson) -> str:
        assert lesson.reply is not None
        lesson.rejected.add(lesson.reply)
        for _ in range(_MAX_TRIES):
            reply = self._reply(lesson)
            if reply not in lesson.rejected:
                lesson.reply = reply
                return "This is another reply."
        return "The model has no other reply; write a better one, or go to the next situation."

    def _next_goal(self, lesson: _Lesson) -> str | None:
        """A goal that the conversation has not had yet, or at least another one, at random."""
        if lesson.goal is None:
            return None
        new = [goal for goal in self.goals if goal not in lesson.goals_so_far]
        others = [goal for goal in self.goals if goal != lesson.goal]
        rng = random.Random("/".join([*lesson.situation.place, str(len(lesson.turns))]))
        return rng.choice(new or others or [lesson.goal])

    def _reply(self, lesson: _Lesson) -> str:
        self._n_asked += 1
        seed = None if self._seed is None else derive_seed(self._seed, "teach", self._n_asked)
        *_, last = self._model.stream(self._prompt(lesson), seed)
        return last.text

    def _prompt(self, lesson: _Lesson) -> str:
        dialogue_format = self._model.dialogue_format
        return dialogue_format.prompt(dialogue_format.context(lesson.turns), lesson.persona)

    def _lesson(self, person: str) -> _Lesson | None:
        if (situation := self._own(person)) is None:
            return None
        lesson = self._lessons.get(person)
        if lesson is None or lesson.situation is not situation:
            lesson = self._lessons[person] = _Lesson(situation, [*situation.turns], situation.goal)
        return lesson


def _not_judged(situations: Iterable[Situation], known: Iterable[Feedback]) -> dict[str, Situation]:
    """The situations that nobody judged, by number.

    Several may look alike, as in games with a secret: then each accepted or corrected reply stands for one of them.
    """
    n_judged: Counter[tuple[str, ...]] = Counter()
    touched = set()
    for each in (given for given in known if not given.rates_conversation):
        for persona in {each.persona or "", without_goal(each.persona or "")}:
            place = (persona, *each.turns)
            touched.add(place)
            n_judged[place] += each.kind == "correction" or each.rating == 1
    left = {}
    for number, situation in enumerate(situations):
        place = situation.place
        n_judged[place] = max(n_judged[place], place in touched)
        touched.discard(place)
        if n_judged[place]:
            n_judged[place] -= 1
        else:
            left[str(number)] = situation
    return left


class AdapterLearner:
    """Trains low-rank adapters of the model on the corrections of a session, a bounded number of steps at a time.

    The adapters start as those that were kept last, in ``taught/`` of the folder. Until the person keeps them, the
    model of before can be restored, and nothing is saved; a lesson that is interrupted changes nothing. Methods return
    a note for the person.
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
        self._n_new, self._kept = 0, parameters_to_vector(self._trained).detach()

    def _restore(self, weights: torch.Tensor) -> None:
        self._policy.weights_will_change()
        vector_to_parameters(weights.clone(), self._trained)

    def learn(self, prompt: str, reply: str) -> str:
        """Take a better reply to a prompt, and learn if it is time."""
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
        before, losses = parameters_to_vector(self._trained).detach(), []
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
        """Save what was learned."""
        with self._folder.replacing_folder(TAUGHT) as folder:
            save_language_model(self._policy.language_model, folder, self._lora)
            self._loaded.tokenizer.save_pretrained(folder)
        self._kept = parameters_to_vector(self._trained).detach()
        return f"The model was saved in {self._folder.path(TAUGHT)}; rl4dialog chat --model reads it."

    def undo(self) -> str:
        """Return to what was kept last."""
        self._restore(self._kept)
        self._examples = []
        return "The model is as it was kept last. The corrections are still in the feedback file."


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
    return Teaching(agent, [conversations.situation(each) for each in chosen], feedback, seed, known, learner)


class _Conversations:
    """Conversations with the run's partner, by the rules of the run; without a partner, those of the samples."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        self._loaded, config = loaded, loaded.config
        args = config.env.args if config.env is not None else None
        own = None if args is None else config.train_evaluation.partner or args.conversation_partner
        self._partner: AnyPartner | None = None
        self._rules = ConversationRules(max_turns=_NO_LIMIT)
        if args is None or own is None:
            return
        ends = args.end_when.model_dump()
        self._rules = ConversationRules(
            args.max_turns, "sample", args.max_partner_length, args.context_turns, end_when=ends
        )
        if len(members_of(own)) > 1:
            raise ConfigError(
                "a person teaches with one partner; choose it by --set train_evaluation.partner={id: ...}"
            )
        self._partner = build_partner(own, config, loaded.texts, is_evaluation=True)
        if isinstance(self._partner, PartnerService):
            loaded.begin_conversations(self._partner)

    def situation(self, sample: Sample) -> Situation:
        info = sample.meta_data or {}
        turns = [str(text) for text in info.get("history", [sample.prompt_or_input_text])]
        if not turns:
            raise DataError(f"sample {sample.id!r} has no utterance to reply to, so nobody can judge a reply there")
        has_partner = self._partner is not None or bool(info.get("continuation"))
        begin = functools.partial(self._begun, sample) if has_partner else None
        return Situation(turns, persona_in(info) or None, goal_in(info), begin)

    def _begun(self, sample: Sample) -> Answers:
        loaded, partner = self._loaded, self._partner
        own = None if isinstance(partner, PartnerService) else copy.deepcopy(partner or ReplayPartner())
        lengths, frame = loaded.lengths, loaded.data.pools["train"].frame()
        end_of_turn = loaded.policy.end_of_turn
        sides = frame, own, copy.deepcopy(loaded.toolbox)
        conversation = Conversation(self._rules, end_of_turn, lengths.prompt, lengths.truncation_side, *sides)
        conversation.begin(sample, derive_seed(loaded.config.seed or 0, "teach", str(sample.id)))
        return functools.partial(self._answer, conversation)

    def _answer(self, conversation: Conversation, said: str) -> PartnerReply:
        """The partner's answer to an utterance of the model; it leaves where the conversation ends by the rules."""
        if (called := conversation.called(said)) is not None:
            reply = called
        elif isinstance(self._partner, PartnerService):
            (answer,) = partner_replies(self._partner, [(conversation.for_partner(said), conversation.meta_info)])
            reply = conversation.heard(answer)
        else:
            reply = conversation.ask(said)
        return replace(reply, leaves=conversation.settle(said, True, reply) is not None)
