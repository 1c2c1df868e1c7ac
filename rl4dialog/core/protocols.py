"""Contracts between layers: the interfaces of rewards, metrics, conversation partners and scripted players.

Signatures of rewards and metrics are those of RL4LMs, so its classes can be used unchanged.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from rl4dialog.core.types import Call, Dialogue, Frame, PartnerReply

MetricResult = dict[str, tuple[list[float] | None, float]]


class ObservationLike(Protocol):
    """The state available to token-level rewards (see :class:`rl4dialog.envs.conversation.Observation`)."""

    prompt_or_input_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]

    @property
    def context_text(self) -> str: ...


class PromptPrefix(Protocol):
    """What all prompts of a run begin with."""

    characters: str  # all that it is made of, for tokenizers that are trained on the texts

    @property
    def note(self) -> str:
        """Remark for those who use the model alone."""

    def asked(self, prompt: str, dialogue_format: Any, turn_end: str | None) -> str:
        """Return a prompt that begins with it."""

    def asking(self, pool: Any) -> Any:
        """Return a datapool whose prompts begin with it."""


class RewardFunction(ABC):
    """Reward per token, called in the env workers after every token.

    Each environment has its own copy of the object, which can therefore keep state. To share large constant data
    between the environments of a process, define a ``__deepcopy__`` that returns ``self``. Open files, sockets,
    databases and threads on first use: each worker process unpickles the object.
    """

    needs_tokens = False
    """Whether the reward needs the tokens of a reply; evaluations then have no metric ``reward``."""
    needs_references = False
    """Whether the reward compares the reply with references."""

    @abstractmethod
    def __call__(
        self,
        prev_observation: ObservationLike,
        action: int,
        current_observation: ObservationLike,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        """Return the reward of one step.

        Args:
            prev_observation: State before the token.
            action: The token's id.
            current_observation: State after the token; its ``context_text`` is the reply so far.
            done: True when the episode ended with this token.
            meta_info: The sample's ``meta_data``.
        """


class SentenceRewardFunction(RewardFunction):
    """A reward for whole replies, paid on the last token when the episode ends."""

    @abstractmethod
    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        """Score one reply."""

    def __call__(
        self,
        prev_observation: ObservationLike,
        action: int,
        current_observation: ObservationLike,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        if not done:
            return 0.0
        return self.score(
            current_observation.prompt_or_input_text,
            current_observation.context_text,
            current_observation.target_or_reference_texts,
            meta_info or {},
        )


class BatchedRewardFunction(ABC):
    """Reward of whole replies, called once per rollout batch in the main process, so that a model is loaded once."""

    needs_references = False
    """Whether the reward compares replies with references."""

    @abstractmethod
    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        """Score a batch of replies.

        Args:
            prompt_texts: One prompt per reply.
            gen_texts: The replies, without any end-of-turn marker.
            ref_texts: Reference replies per prompt.
            dones: True where the episode ended with this reply.
            meta_infos: The samples' ``meta_data``.

        Returns:
            One finite number per reply, paid on its last token. With ``pay: end``, only those of replies that ended
            their episode count.
        """


class BaseMetric(ABC):
    """A measure of generated texts."""

    needs_references = False
    """Whether texts without references are an error."""
    uses_model = False
    """Whether it reads ``model``. If the model is sharded over processes, only such a metric gets one, a whole copy."""

    @abstractmethod
    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        """Measure a corpus.

        Args:
            prompt_texts: One prompt per generated text.
            generated_texts: The generated texts.
            reference_texts: Any number of references per generated text.
            meta_infos: The samples' ``meta_data``.
            model: The evaluated language model, for metrics that compute probabilities.
            split_name: ``train``, ``val`` or ``test``.

        Returns:
            By key, the score of each text (``None`` if the metric has none) and the score of the corpus.
        """


class ConversationReward(ABC):
    """Reward of whole conversations, called in the env workers after every turn.

    A turn is an utterance of the agent and the partner's answer.
    """

    needs_partner = False
    """Whether the reward comes from the partner, so that a reply without one cannot earn it."""
    needs_calls = False
    """Whether the reward reads calls of tools, so that conversations need a toolbox."""

    @abstractmethod
    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        """Score the last turn.

        Args:
            dialogue: The conversation up to and including the partner's answer.
            over: Whether the conversation ended with this turn.

        Returns:
            The reward of this turn, paid on the last token of the agent's utterance.
        """


class BatchedConversationReward(ABC):
    """Reward of whole conversations, called in the main process for all conversations that had a turn."""

    @abstractmethod
    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        """Score the last turn of each conversation.

        Args:
            dialogues: Conversations up to and including the partner's answer.
            overs: Whether each of them ended with this turn.

        Returns:
            One number per conversation, paid on the last token of the agent's last utterance. For a conversation that
            is over, it can instead be a list with one number per utterance of the agent, each paid on the last token of
            its utterance.
        """


class DialogueMetric(ABC):
    """A measure of whole conversations."""

    uses_model = False
    """As for :class:`BaseMetric`."""

    @abstractmethod
    def compute(self, dialogues: list[Dialogue], model: Any = None, split_name: str | None = None) -> MetricResult:
        """Measure conversations.

        Args:
            dialogues: The conversations.
            model: The evaluated language model, for metrics that compute probabilities.
            split_name: ``train``, ``val`` or ``test``.

        Returns:
            By key, the score of each conversation (``None`` if the metric has none) and the score of all.
        """


class Partner(ABC):
    """The other side of a conversation, inside an environment: picklable, and without a neural network.

    The partner is asked after every utterance of the agent, the last one included.
    """

    can_open = False
    """Whether the partner has a first utterance, for ``first_speaker: partner``."""
    pays = False
    """Whether its replies carry rewards, for the reward ``partner``."""
    gives_references = False
    """Whether its replies come with ``references`` for the agent's next utterance."""
    outcomes: tuple[str, ...] = ()
    """Keys of :meth:`outcome`."""
    checks_samples = False
    """Whether :meth:`reset` raises a ``DataError`` for an unsuitable sample; a run then checks all samples first."""
    waits = False
    """Whether its answers take time elsewhere, so that :meth:`expect` should be called before they are needed."""
    role: str = ""
    """Who a person is who talks to the model in its place, and what to do, in a sentence."""
    rules: tuple[str, ...] = ()
    """Arguments that must have the same values in the datapool with the same id, which plays by the same rules."""
    unrepeatable: str | None = None
    """Why a conversation cannot be repeated up to some turn and then continued differently; ``None`` if it can."""

    @abstractmethod
    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        """Start a conversation about a sample.

        Args:
            meta_info: The sample's ``meta_data``.
            seed: Seed for the partner's random numbers in this conversation.
        """

    def secret(self) -> str:
        """Return what the partner knows and the agent does not, such as its goal, for ``critic_reads: secret``.

        It is fixed by :meth:`reset`, before the agent speaks, and independent of what the agent will say.
        """
        return ""

    def reseed(self, seed: int) -> None:
        """Draw other random numbers from now on; by default, from each `random.Random` and `Generator` attribute."""
        for value in vars(self).values():
            if isinstance(value, random.Random):
                value.seed(seed)
            elif isinstance(value, np.random.Generator):
                value.bit_generator.state = type(value.bit_generator)(seed).state

    def expect(self, history: list[str]) -> None:  # noqa: B027 (most partners need not prepare)
        """Begin to prepare the answer to a history, an empty one before :meth:`open`, without waiting or raising.

        If ``waits`` is set, all environments of a process call this before the first of them waits for an answer. The
        partner must also answer without this call.
        """

    @abstractmethod
    def reply(self, history: list[str]) -> PartnerReply | str | None:
        """Answer the last utterance.

        Args:
            history: All utterances so far, oldest first, those of the sample included.

        Returns:
            The answer. A text is short for ``PartnerReply(text)``, and ``None`` for ``PartnerReply(leaves=True)``.
        """

    def open(self) -> PartnerReply | str:
        """Return the first utterance of a conversation; required if ``can_open`` is set."""
        raise NotImplementedError("it sets can_open, but has no method open")

    def outcome(self) -> Mapping[str, float]:
        """Return what the partner makes of the conversation so far, such as ``{"success": 1.0}``."""
        return {}

    def failures(self) -> Sequence[str]:
        """Return why the partner did not reach its goal in the conversation so far, in words; for people only."""
        return ()


class Toolbox(ABC):
    """What answers calls among the agent's utterances in place of the partner, which does not hear them; picklable."""

    outcomes: tuple[str, ...] = ()
    """Keys of :meth:`outcome`."""
    frame: Frame | None = None
    """Markup around calls and answers; by default that around the partner's utterances."""

    def prepare(self, template: Any, frame: Frame) -> None:  # noqa: B027 (texts need no markup)
        """Find the markup in the run's ``ChatTemplate``, whose conversations have this frame; not called for others."""

    def written(self, said: str) -> tuple[str, str, str]:
        """An utterance of the agent as the run's format writes it: with markup before and after it, if it is a call."""
        return "", said, ""

    @abstractmethod
    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        """Start a conversation about a sample, as for :class:`Partner`."""

    @abstractmethod
    def takes(self, said: str) -> bool:
        """Whether an utterance of the agent is a call."""

    @abstractmethod
    def read(self, said: str) -> Call:
        """What an utterance calls, without an answer; it has a ``problem`` if it cannot be read."""

    def fault(self, said: str) -> str:
        """Why a call would be answered by an error without asking a tool; empty if it would not."""
        return self.read(said).problem

    @abstractmethod
    def answer(self, said: str, is_cut: bool = False) -> PartnerReply:
        """Answer a call, which may be cut at the length limit.

        The reply has a text, its ``call``, and ``leaves`` if it ends the conversation.
        """

    @abstractmethod
    def outcome(self) -> Mapping[str, float]:
        """Return numbers about the calls so far, beside those of the partner."""


class Player(ABC):
    """A scripted speaker of the agent's side, for demonstrations and as floor or ceiling of evaluations."""

    @abstractmethod
    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        """Start a conversation about a sample.

        Args:
            meta_info: The sample's ``meta_data``.
            seed: Seed for the player's random numbers in this conversation.
        """

    @abstractmethod
    def say(self, history: list[str]) -> str:
        """Return the agent's next utterance.

        Args:
            history: All utterances so far, oldest first, those of the sample included.
        """

    def hint(self, history: list[str]) -> str:
        """What a person could say next; a ``DataError`` if nothing is left that would make sense."""
        return self.say(history)


class PartnerService(ABC):
    """The other side of conversations in the main process, for all environments together.

    An environment shows the partner's prompts, in the partner's own tokens (see
    :class:`rl4dialog.envs.conversation.OutsidePartner`), and takes its tokens as actions.
    """

    can_open = True
    """As for :class:`Partner`, like the next three."""
    pays = False
    gives_references = False
    outcomes: tuple[str, ...] = ()
    learns = False
    """Whether its utterances in rollouts are trained on: it speaks as the agent's policy, and has :meth:`replies`."""
    in_lockstep = False
    """Whether it must be asked in all processes of a run equally often, if need be for no answers: it runs a model that
    these share."""
    needs_initial_weights = False
    """Whether :meth:`begin_run` needs the weights with which the training of the agent began."""
    members: Sequence[PartnerService | None] = ()
    """If it stands for several partners, each of them, by the number under ``partner`` of an observation; ``None`` for
    one inside the environments. The members are asked instead."""

    @property
    @abstractmethod
    def side(self) -> Any:
        """The ``OutsidePartner`` that the environments need: tokenizer, format and lengths; for several, ``OneOf``."""

    @abstractmethod
    def answers(self, observations: dict[str, np.ndarray]) -> list[Sequence[int] | None]:
        """Answer several conversations.

        Args:
            observations: ``prompt_ids`` (n, P), ``prompt_mask`` (n, P) of the conversations that wait for an answer; if
                its side is seeded, also ``partner_seed`` (n,), which is the same throughout a conversation.

        Returns:
            The token ids of each answer, with its end; ``None`` to leave the conversation.
        """

    def replies(self, observations: dict[str, np.ndarray]) -> Any:
        """Answer as :meth:`answers` does, with ``Replies`` that can be trained on; required if ``learns`` is set."""
        raise NotImplementedError("it sets learns, but has no method replies")

    def remembering_prompts(self) -> AbstractContextManager[None]:
        """Context of a rollout or an evaluation, in which prompts continue earlier prompts."""
        return nullcontext()

    def begin_run(self, policy: Any, initial: Any = None) -> None:
        """Prepare for conversations with the agent's policy, before it is trained or its weights are restored.

        ``initial`` are its weights before training, if it has others now: a ``WeightCopy`` of ``rl4dialog.policies``.
        """
        del policy, initial

    def begin_iteration(self, iteration: int) -> None:
        """Prepare for an iteration, counted from 1; called after the update of the previous one."""
        del iteration

    def logged(self) -> Mapping[str, Sequence[float]]:
        """Return numbers of this iteration, of which the run logs the means, by key (``rollout/...``)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two iterations, without tensors, as JSON values."""
        return {}

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of the state by name."""
        return {}

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        """Restore the results of :meth:`state_dict` and :meth:`tensors`, after :meth:`begin_run`."""
        del state, tensors
