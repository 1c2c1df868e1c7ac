"""Text generation as a token-level Markov decision process (gymnasium), for conversations of any number of turns.

One step is one token. An utterance ends at an end-of-sequence token, at the turn marker of the dialogue format, or at
the length limit. Then the partner answers, if there is one. The utterance and its answer are a turn, after which the
rewards are known and the next prompt is the longer conversation.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl4dialog.core.errors import ConfigError, DataError, RewardError, raised
from rl4dialog.core.protocols import ConversationReward, Partner, Toolbox
from rl4dialog.core.reward_parts import RewardPart, weighted_sum
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Frame, PartnerReply, Sample
from rl4dialog.envs.conversation import (
    Conversation,
    ConversationRules,
    FirstSpeaker,
    Observation,
    OneOf,
    OutsidePartner,
    PartnersSide,
)
from rl4dialog.text.end_of_turn import EndOfTurn


class TokenIds(spaces.Box):
    """A space of token ids, which networks that flatten observations would read as sizes."""


@spaces.flatdim.register(TokenIds)
def _(space: TokenIds) -> NoReturn:
    problem = "observations are token ids, which a network of features would read as sizes"
    raise ConfigError(f"{problem}; use PPO(env.policy_class, env, policy_kwargs=env.policy_kwargs)")


class SharedSamples(Sequence[Sample]):
    """Samples, or pairs of a sample and its weight, as one block of bytes; each is unpickled on access.

    So an episode cannot change a sample of another one, and workers receive it fast. ``weights`` are the sampling
    weights, or ``None`` if all are equal. Shape (n,).
    """

    def __init__(self, samples: Sequence[Sample | tuple[Sample, float]]) -> None:
        self.weights = sampling_weights(samples)
        # cloudpickle, so that workers can unpickle classes from user files.
        block = io.BytesIO()
        pickler = cloudpickle.CloudPickler(block, protocol=pickle.HIGHEST_PROTOCOL)
        ends = []
        for pair in samples:
            sample = pair if isinstance(pair, Sample) else pair[0]
            try:
                pickler.dump(sample)
            except Exception as error:
                raise DataError(f"sample {sample.id!r} cannot be pickled: {type(error).__name__}: {error}") from error
            pickler.clear_memo()
            ends.append(block.tell())
        self._block, self._ends = block.getvalue(), np.array(ends, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        i = range(len(self))[index]
        return pickle.loads(memoryview(self._block)[self._ends[i - 1] if i else 0 : self._ends[i]])


def sampling_weights(samples: Sequence[Sample | tuple[Sample, float]]) -> np.ndarray | None:
    """Return the sampling weights of samples, or ``None`` if all are equal. Shape (n,)."""
    weights = np.array([1.0 if isinstance(sample, Sample) else float(sample[1]) for sample in samples])
    return None if np.all(weights == weights[:1]) else weights


def sampling_probabilities(weights: np.ndarray, priority_scale: float) -> np.ndarray:
    """Probability of each sample: its weight to the power of ``priority_scale``, normalized. Shape (n,).

    Schaul et al. 2016, "Prioritized Experience Replay", as in RL4LMs' sampler.
    """
    # At most 1, so that powers cannot overflow.
    scaled = (weights / weights.max()) ** priority_scale
    return scaled / scaled.sum()


class TextGenEnv(gym.Env):
    """Conversations of a language model as a token-level Markov decision process.

    Observation: dict of int64 arrays (see :meth:`Observation.to_dict`). Action: a token id, ``Discrete(V)``.

    An episode is a conversation of at most ``max_turns`` agent utterances. ``truncated`` means that it ended with an
    utterance that was cut at the length limit; every other end is ``terminated``.

    Args:
        end_of_turn: Detects the end of a reply, and has the tokenizer.
        samples: Samples, or pairs of a sample and its sampling weight.
        reward_parts: Rewards that are computed here; their sum has the weights of the first iteration.
        max_prompt_length: P, in tokens. The oldest utterances of a longer conversation are dropped whole.
        max_episode_length: T, the maximum number of tokens of one agent utterance.
        vocab_size: V, the number of rows of the model's embedding.
        prompt_truncation_side: Side at which a sample's prompt is truncated if it is longer than P.
        max_turns: Maximum number of agent utterances per conversation.
        priority_scale: Exponent of the samples' weights; samples are drawn with probability proportional to the result.
            With 0, or equal weights, every sample occurs once per round.
        partner: Answers each agent utterance; more than one turn needs this or ``outside_partner``.
        outside_partner: Partner that speaks through :meth:`step`, from its prompt in observations, in its own tokens;
            or several partners, also inside, of which each conversation has one.
        toolbox: Answers calls among the agent's utterances in place of the partner.
        frame: Markup around the utterances of a conversation; by default, line breaks or the turn marker.
        first_speaker: See :class:`ConversationRules`, as for the next three.
        max_partner_length: Limit of a partner's utterance.
        context_turns: Limit of the utterances in a prompt.
        end_when: Patterns that end a conversation.
        shares_dialogues: Whether the infos contain the conversation, for rewards in the main process.
        max_secret_length: S, for observations with what the partner of the conversation knows (``secret_ids``,
            ``secret_mask``), which only a critic may read; by default they have none.
        part: Number of this environment and of all, whose samples all occur once; by default, they occur in rounds.

    Attributes:
        state: State of the utterance in progress.
        speaker: Whose utterance it is: ``AGENT`` or ``PARTNER``.
        at_work: The reward called last, or the partner, for error messages.
    """

    state: Observation
    speaker: int = AGENT
    # The utterance of the agent that is not answered yet: the states before and after its last token, this token, and
    # whether it ended.
    _pending: tuple[Observation, Observation, int, bool] | None = None
    at_work = "the environment"
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(
        self,
        end_of_turn: EndOfTurn,
        samples: Sequence[Sample | tuple[Sample, float]],
        reward_parts: Sequence[RewardPart],
        max_prompt_length: int,
        max_episode_length: int,
        vocab_size: int,
        prompt_truncation_side: str = "left",
        max_turns: int = 1,
        partner: Partner | None = None,
        outside_partner: OutsidePartner | OneOf | None = None,
        frame: Frame | None = None,
        priority_scale: float = 1.0,
        first_speaker: FirstSpeaker = "sample",
        max_partner_length: int | None = None,
        context_turns: int | None = None,
        end_when: Mapping[str, Sequence[str]] | None = None,
        shares_dialogues: bool = False,
        max_secret_length: int | None = None,
        part: tuple[int, int] | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        super().__init__()
        if not samples:
            raise DataError("an environment needs at least one sample")
        if max_turns > 1 and partner is None and outside_partner is None:
            raise ConfigError(f"env.args.max_turns is {max_turns}, which needs a partner: set env.args.partner")
        self.end_of_turn, self.tokenizer, self.reward_parts = end_of_turn, end_of_turn.tokenizer, list(reward_parts)
        self.max_prompt_length, self.max_episode_length = max_prompt_length, max_episode_length
        self.max_turns = max_turns
        rules = ConversationRules(max_turns, first_speaker, max_partner_length, context_turns, end_when or {})
        sides = frame, partner, toolbox
        self.conversation = Conversation(rules, end_of_turn, max_prompt_length, prompt_truncation_side, *sides)
        self._several = outside_partner if isinstance(outside_partner, OneOf) else None
        self._partners = [partner or outside_partner] if self._several is None else [*self._several.partners]
        outside = [each for each in self._partners if isinstance(each, OutsidePartner)]
        self._shows_seed = any(each.is_seeded for each in outside)
        self._sides = [
            PartnersSide(each, max_prompt_length) if isinstance(each, OutsidePartner) else None
            for each in self._partners
        ]
        self._number = 0  # of the partner in this conversation
        self._shares_dialogues = shares_dialogues
        self._pays_only_turns = all(isinstance(p.function, ConversationReward) and p.clip is None for p in reward_parts)
        self._reads_dialogues = any(isinstance(part.function, ConversationReward) for part in reward_parts)
        # Not copied, because the environments of a process share it.
        self._samples = samples
        self._weights = samples.weights if isinstance(samples, SharedSamples) else sampling_weights(samples)
        self._priority_scale, self._part = priority_scale, part
        if part is not None and self._weights is not None and priority_scale:
            raise ConfigError(
                "env.args.once: the samples have weights, by which they would repeat; set priority_scale: 0"
            )
        self._order = np.zeros(0, dtype=np.int32)
        self._n_left = 0
        self._before_order: Mapping[str, Any] = {}  # state of the random generator before the order was drawn
        self._sample_was_drawn = False
        self._partner_seed = 0
        self._secret, self._max_secret_length = list[int](), max_secret_length

        P, T, V = max_prompt_length, max_episode_length, vocab_size
        of_speaker: dict[str, spaces.Space] = {}
        if self.partner_is_outside:
            V = max([V, *(each.vocab_size for each in outside)])
            T = max([T, *(each.max_length for each in outside)])
            of_speaker["speaker"] = spaces.Discrete(2)
            of_speaker |= {} if self._several is None else {"partner": spaces.Discrete(len(self._partners))}
            of_speaker |= {"partner_seed": spaces.Discrete(2**31)} if self._shows_seed else {}
        self._sizes = P, T
        of_secret = [] if max_secret_length is None else [("secret", max_secret_length)]
        of_texts = {
            f"{name}_{what}": TokenIds(0, high, (size,), np.int64)
            for name, size in (("prompt", P), ("context", T), *of_secret)
            for what, high in (("ids", V - 1), ("mask", 1))
        }
        self.observation_space = spaces.Dict({**of_texts, **of_speaker})
        self.action_space: spaces.Space = spaces.Discrete(V)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start a conversation; ``options={"sample": Sample}`` selects its sample, a seed the order of others."""
        self.prepare(seed, options)
        self.start()
        return self.observe(), {"sample_id": self.sample.id}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Append one token to the utterance of the speaker.

        The info has ``utterance_over`` and ``reward_parts``. The last token of the agent is rewarded after its answer.
        """
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """State that determines all coming episodes, at the start of one, without that of rewards and the partner."""
        if not self._sample_was_drawn or self.conversation.n_turns or self._pending or self.state.context_ids:
            raise RuntimeError("an environment is saved only at the start of an episode with a drawn sample")
        return {
            "before_order": self._before_order,
            "n_left": self._n_left,
            "np_random": self.np_random.bit_generator.state,
            "partner_seed": self._partner_seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the episode start of :meth:`state_dict`, in an environment with the same arguments."""
        self._before_order = state["before_order"]
        self.np_random.bit_generator.state = self._before_order
        self._draw_order()
        self._n_left = state["n_left"]
        self.np_random.bit_generator.state = state["np_random"]
        self._sample_was_drawn = True
        self._prepare_episode(self._sample_in_order(self._n_left), state["partner_seed"])
        self.start()

    def prepare(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Perform the first half of :meth:`reset`, which does not wait for the partner."""
        super().reset(seed=seed)
        if seed is not None:
            self._n_left, self._before_order = 0, {}
        given = (options or {}).get("sample")
        self._sample_was_drawn = given is None
        sample = given or self._next_sample()
        talk, shows_seed = self.conversation, self._shows_seed or self._several is not None
        draws_seed = talk.partner is not None or talk.toolbox is not None or shows_seed
        self._prepare_episode(sample, int(self.np_random.integers(2**31)) if draws_seed else 0)

    def start(self) -> None:
        """Perform the second half of :meth:`reset`."""
        self.conversation.start()
        if self._partners_side is not None:
            self._partners_side.begin(self.conversation.meta_info)
            if self.conversation.rules.first_speaker == "partner":
                self.state, self.speaker = self._partners_side.asked([]), PARTNER
                return
        self._begin_utterance()

    @property
    def partner_is_outside(self) -> bool:
        """Whether a partner may speak through :meth:`step`."""
        return self._several is not None or self._partners_side is not None

    @property
    def partner_waits(self) -> bool:
        """Whether answers of a partner inside take time elsewhere."""
        return any(isinstance(each, Partner) and each.waits for each in self._partners)

    @property
    def _partners_side(self) -> PartnersSide | None:
        """The side of this conversation's partner, if it is outside."""
        return self._sides[self._number]

    @property
    def sample(self) -> Sample:
        """Sample of the conversation."""
        return self.conversation.sample

    def skip(self, tokens: Sequence[int]) -> int:
        """Append the first tokens of an utterance, if :meth:`advance` would pay them nothing; returns their number."""
        n, is_end = len(tokens) - 1, self.state.end_of_turn.is_end
        if self.speaker == AGENT and not self._pays_only_turns:
            return 0
        after = self.state.after(*tokens[:n])
        ids, n_before = after.context_ids, len(self.state.context_ids)
        if len(ids) >= (after.max_episode_length or 0) or any(is_end(ids[: n_before + i + 1]) for i in range(n)):
            return 0
        self.state = after
        return n

    def advance(self, action: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """Perform :meth:`step` without the observation, which would take half of the time."""
        previous = self.state
        self.state = current = previous.after(int(action))
        ended = current.end_of_turn.is_end(current.context_ids)
        is_over = ended or len(current.context_ids) >= (current.max_episode_length or 0)
        info: dict[str, Any] = {"sample_id": self.sample.id, "utterance_over": is_over}
        if self.speaker == PARTNER:
            if not is_over:
                return 0.0, False, False, info
            assert self._partners_side is not None
            return self.hear(self._partners_side.answer(current.context_ids))
        if not is_over:
            info["reward_parts"] = self._raw_rewards(previous, int(action), current)
            return float(weighted_sum(self.reward_parts, info["reward_parts"])), False, False, info
        self._pending = previous, current, int(action), ended
        self.at_work = "a tool"
        if (answer := self.conversation.called(current.context_text, not ended)) is not None:
            return self.hear(answer)
        if self._partners_side is not None:
            texts = self.conversation.for_partner(current.context_text)
            self.state, self.speaker = self._partners_side.asked(texts), PARTNER
            return 0.0, False, False, info
        self.at_work = "the partner"
        return self.hear(self.conversation.ask(current.context_text))

    def hear(self, reply: PartnerReply) -> tuple[float, bool, bool, dict[str, Any]]:
        """Complete a turn with the partner's answer, or start a conversation that the partner opens.

        Returns the reward of the agent's last token, terminated, truncated, and the info of the turn.
        """
        self.speaker = AGENT
        if self._pending is None:
            self.conversation.hear_opening(reply)
            self._begin_utterance()
            return 0.0, False, False, {"sample_id": self.sample.id, "utterance_over": True}
        if self._partners_side is not None:
            reply = self.conversation.heard(reply)
        is_learned = self._partners_side is not None and self._partners_side.is_learned
        repeats = is_learned and bool(reply.text) and reply.text in self.conversation.said_by_partner
        previous, current, action, ended = self._pending
        self._pending = None
        self.state = current  # the last one of a conversation, from which a truncated one is bootstrapped
        said, conversation = current.context_text, self.conversation
        lacks_room = conversation.history.lacks_room
        ended_by = conversation.settle(said, ended, reply)
        is_over = ended_by is not None
        dialogue = conversation.dialogue(ended_by) if self._reads_dialogues or self._shares_dialogues else None
        parts = self._raw_rewards(previous, action, current, is_over, is_turn=True, dialogue=dialogue)
        info: dict[str, Any] = {
            "sample_id": self.sample.id,
            "utterance_over": True,
            "utterance_truncated": not ended,
            "reward_parts": parts,
            "final_observation": current,
            "turn": conversation.n_turns - 1,
            "context_dropped": lacks_room,
            "partner_echoes": bool(reply.text) and reply.text == said,
        }
        if self._several is not None:
            info["partner"] = conversation.partner_name
        if is_learned:
            info["partner_repeats"] = repeats
        if self._shares_dialogues:
            info["dialogue"] = dialogue
        if is_over:
            info["ended_by"] = ended_by
        else:
            conversation.go_on(current.context_ids, said, reply)
            self._begin_utterance()
        truncated = ended_by == "length"
        return float(weighted_sum(self.reward_parts, parts)), is_over and not truncated, truncated, info

    def observe(self) -> dict[str, np.ndarray]:
        """Return the current state as arrays."""
        arrays = self.state.to_dict(*self._sizes, int(self.state.end_of_turn.tokenizer.pad_token_id))
        if self.partner_is_outside:
            arrays["speaker"] = np.asarray(self.speaker, dtype=np.int64)
        if self._several is not None:
            arrays["partner"] = np.asarray(self._number, dtype=np.int64)
        if self._shows_seed:
            arrays["partner_seed"] = np.asarray(self._partner_seed, dtype=np.int64)
        if self._max_secret_length is not None:
            n_before, pad = self._max_secret_length - len(self._secret), int(self.tokenizer.pad_token_id)
            arrays["secret_ids"] = np.array([pad] * n_before + self._secret, dtype=np.int64)
            arrays["secret_mask"] = np.array([0] * n_before + [1] * len(self._secret), dtype=np.int64)
        return arrays

    def blank(self) -> dict[str, np.ndarray]:
        """Show an empty prompt, for a conversation that could not begin."""
        pad = int(self.tokenizer.pad_token_id)
        self.state, self.speaker = Observation([pad], [], "", [], {}, self.end_of_turn), AGENT
        return self.observe()

    def _next_sample(self) -> Sample:
        if not self._n_left:
            if self._part is not None and self._before_order:
                raise DataError(
                    f"env.args.once: an environment has talked about all {len(self._order)} samples of its part of "
                    f"{len(self._samples)}; use more samples, or fewer iterations"
                )
            self._before_order = self.np_random.bit_generator.state
            self._draw_order()
            self._n_left = len(self._order)
        self._n_left -= 1
        return self._sample_in_order(self._n_left)

    def _draw_order(self) -> None:
        n = len(self._samples)
        if self._part is not None:
            order = self.np_random.permutation(np.arange(n)[self._part[0] :: self._part[1]])
        elif self._weights is None or self._priority_scale == 0:
            order = self.np_random.permutation(n)
        else:
            order = self.np_random.choice(n, size=n, p=sampling_probabilities(self._weights, self._priority_scale))
        self._order = order.astype(np.int32)

    def _sample_in_order(self, index: int) -> Sample:
        sample = self._samples[int(self._order[index])]
        return sample if isinstance(sample, Sample) else sample[0]

    def _prepare_episode(self, sample: Sample, partner_seed: int) -> None:
        self._partner_seed, self._pending, self.speaker, self._secret = partner_seed, None, AGENT, []
        self.at_work = "the partner"
        if self._several is not None:
            self._number = self._several.drawn(partner_seed)
            self.conversation.partner_name, partner = self._several.names[self._number], self._partners[self._number]
            self.conversation.partner = partner if isinstance(partner, Partner) else None
        self.conversation.prepare(sample, partner_seed)
        if self._max_secret_length is not None:
            persona_key = getattr(self._partners[self._number], "persona_key", None)
            self._secret = self.conversation.secret_ids(self._max_secret_length, persona_key)

    def _begin_utterance(self) -> None:
        talk, sizes = self.conversation, (self.max_prompt_length, self.max_episode_length)
        read = talk.history.prompt, talk.references, talk.meta_info
        self.state = Observation(talk.history.prompt_ids, [], *read, self.end_of_turn, *sizes)

    def _raw_rewards(
        self,
        previous: Observation,
        action: int,
        current: Observation,
        done: bool = False,
        is_turn: bool = False,
        dialogue: Dialogue | None = None,
    ) -> dict[str, float]:
        """Raw values of all rewards at a token, which may complete a turn, and with ``done`` the conversation."""
        parts = {}
        for part in self.reward_parts:
            self.at_work = f"reward {part.name!r}"
            try:
                if isinstance(part.function, ConversationReward):
                    value = part.function(dialogue, done) if is_turn and dialogue is not None else 0.0
                else:
                    is_paid = done or (is_turn and bool(part.each_turn))
                    value = part.function(previous, action, current, is_paid, current.meta_info)
                number = float(value)
            except Exception as error:
                raise RewardError(
                    f"reward {part.name!r} failed on sample {self.sample.id!r} "
                    f"(reply {current.context_text[:80]!r}): {raised(error)}"
                ) from error
            if not math.isfinite(number):
                raise RewardError(
                    f"reward {part.name!r} returned {value!r} for sample {self.sample.id!r} "
                    f"(reply {current.context_text[:80]!r}); it must return finite numbers"
                )
            parts[part.name] = number
        return parts
