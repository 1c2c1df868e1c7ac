"""Text generation as a token-level Markov decision process (gymnasium), for conversations of any number of turns.

One step is one token. A reply ends at an end-of-sequence token, at the turn marker of the dialogue format, or at the
length limit; then the partner replies, if there is one, and the agent's next reply continues the longer history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl4dialog.core.errors import ConfigError, DataError, RewardError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.reward_parts import RewardPart, weighted_sum
from rl4dialog.core.types import Sample
from rl4dialog.envs.observation import Observation
from rl4dialog.envs.shared_samples import SharedSamples, sampling_probabilities, sampling_weights
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import encode_prompt


class TextGenEnv(gym.Env):
    """Conversations of a language model as a token-level Markov decision process.

    Observation: dict of int64 arrays (see :meth:`Observation.to_dict`). Action: a token id, ``Discrete(V)``.

    An episode is a conversation of at most ``max_turns`` agent utterances. ``terminated`` means that the agent ended
    its last utterance, or that the partner ended the conversation; ``truncated`` means that the last utterance was cut
    at the length limit.

    Args:
        end_of_turn: Detects the end of a reply, and has the tokenizer.
        samples: Prompts with references, or pairs of a sample and its sampling weight.
        reward_parts: Token-level rewards. The environment's reward is their sum with the weights of the first
            iteration.
        max_prompt_length: P, in tokens. The oldest turns of a longer history are dropped whole.
        max_episode_length: T, the maximum number of tokens of one agent utterance.
        vocab_size: V, the number of rows of the model's embedding.
        prompt_truncation_side: Side at which a sample's prompt is truncated if it is longer than P.
        max_turns: Maximum number of agent utterances per conversation.
        priority_scale: Exponent of the samples' weights; samples are drawn with probability proportional to the result.
            With 0, or equal weights, every sample occurs once per round.
        partner: Replies between agent utterances; required for more than one turn.
        between_turns: Formats the text between two agent utterances from the partner's reply; by default the reply
            between the format's markers, or on a separate line.

    Attributes:
        state: State of the utterance in progress.
        sample: Sample of the conversation.
        at_work: The reward called last, or the partner, for error messages.
    """

    state: Observation
    sample: Sample
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
        between_turns: Callable[[str], str] | None = None,
        priority_scale: float = 1.0,
    ) -> None:
        super().__init__()
        if not samples:
            raise DataError("an environment needs at least one sample")
        if max_turns > 1 and partner is None:
            raise ConfigError(f"env.args.max_turns is {max_turns}, which needs a partner: set env.args.partner_replies")
        if not 0 <= priority_scale < math.inf:
            raise ConfigError(f"env.args.priority_scale must be a number of at least 0, not {priority_scale}")
        self.end_of_turn = end_of_turn
        self.tokenizer = end_of_turn.tokenizer
        self.reward_parts = list(reward_parts)
        self.max_prompt_length = max_prompt_length
        self.max_episode_length = max_episode_length
        self.max_turns = max_turns
        self._prompt_truncation_side = prompt_truncation_side
        self._partner = partner
        self._between_turns = between_turns
        # Not copied, because the environments of a process share it.
        self._samples = samples
        self._weights = samples.weights if isinstance(samples, SharedSamples) else sampling_weights(samples)
        self._priority_scale = priority_scale
        self._order = np.zeros(0, dtype=np.int32)
        self._n_left = 0
        self._before_order: Mapping[str, Any] = {}  # state of the random generator before the order was drawn
        self._sample_was_drawn = False
        self._partner_seed = 0
        self._pad_token_id = int(self.tokenizer.pad_token_id)

        P, T, V = max_prompt_length, max_episode_length, vocab_size
        self.observation_space = spaces.Dict(
            {
                "prompt_ids": spaces.Box(0, V - 1, (P,), np.int64),
                "prompt_mask": spaces.Box(0, 1, (P,), np.int64),
                "context_ids": spaces.Box(0, V - 1, (T,), np.int64),
                "context_mask": spaces.Box(0, 1, (T,), np.int64),
            }
        )
        self.action_space: spaces.Space = spaces.Discrete(V)

    # -- gymnasium ------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start a conversation.

        Args:
            seed: Seed for the order of samples from here on.
            options: ``{"sample": Sample}`` selects the first sample.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._n_left = 0
        given = (options or {}).get("sample")
        self._sample_was_drawn = given is None
        sample = given or self._next_sample()
        self._begin_episode(sample, int(self.np_random.integers(2**31)) if self._partner is not None else 0)
        return self.observe(), {"sample_id": self.sample.id}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Append one token to the agent's utterance.

        Returns:
            Observation, reward, terminated, truncated, and an info with ``utterance_over`` and ``reward_parts``.

        Raises:
            RewardError: If a reward function raises or does not return a finite number.
        """
        reward, terminated, truncated, info = self.advance(action)
        return self.observe(), reward, terminated, truncated, info

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines all coming episodes, at the start of one; contains only numbers and texts.

        State of rewards and the partner from earlier episodes is not included.

        Raises:
            RuntimeError: If an episode is in progress, or started from a given sample.
        """
        if not self._sample_was_drawn or self._turn or self.state.context_ids:
            raise RuntimeError(
                "an environment's state can be saved only at the start of an episode with a drawn sample"
            )
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
        self._begin_episode(self._sample_in_order(self._n_left), state["partner_seed"])

    # -- conversation ---------------------------------------------------------------------------------------------

    def advance(self, action: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """Perform :meth:`step` without the observation, which would take half of the time."""
        previous = self.state
        self.state = current = previous.after(int(action))
        ended = self.end_of_turn.is_end(current.context_ids)
        utterance_over = ended or len(current.context_ids) >= self.max_episode_length

        partner_reply = None
        if utterance_over:
            self._turn += 1
            self._texts.append(current.context_text)
            if self._turn < self.max_turns and self._partner is not None:
                self.at_work = "the partner"
                partner_reply = self._partner.reply(self._texts)
        partner_left = utterance_over and self._turn < self.max_turns and partner_reply is None
        over = utterance_over and partner_reply is None
        terminated = over and (ended or partner_left)
        truncated = over and not terminated

        parts = self._raw_rewards(previous, int(action), current, over)
        info: dict[str, Any] = {
            "sample_id": self.sample.id,
            "utterance_over": utterance_over,
            "utterance_truncated": utterance_over and not ended,
            "reward_parts": parts,
        }
        if utterance_over:
            info["final_observation"] = current
        if partner_reply is not None:
            self._texts.append(partner_reply)
            between = self._text_between_turns(partner_reply)
            self._begin_utterance(
                self._longer_history(current, ended, between),
                current.prompt_or_input_text + current.context_text + between,
            )
        return float(weighted_sum(self.reward_parts, parts)), terminated, truncated, info

    def observe(self) -> dict[str, np.ndarray]:
        """Return the current state as arrays."""
        return self.state.to_dict(self.max_prompt_length, self.max_episode_length, self._pad_token_id)

    def _next_sample(self) -> Sample:
        if not self._n_left:
            self._before_order = self.np_random.bit_generator.state
            self._draw_order()
            self._n_left = len(self._samples)
        self._n_left -= 1
        return self._sample_in_order(self._n_left)

    def _draw_order(self) -> None:
        n = len(self._samples)
        if self._weights is None or self._priority_scale == 0:
            order = self.np_random.permutation(n)
        else:
            order = self.np_random.choice(n, size=n, p=sampling_probabilities(self._weights, self._priority_scale))
        self._order = order.astype(np.int32)

    def _sample_in_order(self, index: int) -> Sample:
        sample = self._samples[int(self._order[index])]
        return sample if isinstance(sample, Sample) else sample[0]

    def _begin_episode(self, sample: Sample, partner_seed: int) -> None:
        self.sample = sample
        self._meta_info = sample.meta_data or {}
        prompt = encode_prompt(
            self.tokenizer, sample.prompt_or_input_text, self.max_prompt_length, self._prompt_truncation_side
        )
        self._turn = 0
        self._texts = list(self._meta_info.get("history", [sample.prompt_or_input_text]))
        self._begin_utterance(prompt, sample.prompt_or_input_text)
        self._partner_seed = partner_seed
        if self._partner is not None:
            self._partner.reset(self._meta_info, partner_seed)

    def _begin_utterance(self, prompt_ids: list[int], prompt_text: str) -> None:
        sizes = (self.max_prompt_length, self.max_episode_length)
        texts = (prompt_text, self.sample.references, self._meta_info)
        self.state = Observation(prompt_ids, [], *texts, self.end_of_turn, *sizes)

    def _text_between_turns(self, partner_reply: str) -> str:
        if self._between_turns is not None:
            return self._between_turns(partner_reply)
        closing = f" {self.end_of_turn.marker}" if self.end_of_turn.marker else "\n"
        return closing + partner_reply + closing

    def _longer_history(self, utterance: Observation, ended: bool, between: str) -> list[int]:
        """Ids of prompt, utterance and following text; generated ids are kept, never tokenized again."""
        marker = self.end_of_turn.marker
        # An utterance that was truncated, or ended with an end-of-sequence token, still needs the turn marker.
        if ended and marker is not None and utterance.context_ids[-1] not in self.end_of_turn.eos_token_ids:
            between = between.split(marker, 1)[1]
        own = [id for id in utterance.context_ids if id not in self.end_of_turn.eos_token_ids]
        ids = utterance.prompt_ids + own + self.tokenizer(between, add_special_tokens=False)["input_ids"]
        excess = len(ids) - self.max_prompt_length
        if excess <= 0:
            return ids
        for start in range(excess, len(ids)):
            if marker and self.end_of_turn.is_end(ids[:start]):
                return ids[start:]
        return ids[excess:]

    # -- reward ---------------------------------------------------------------------------------------------------

    def _raw_rewards(self, previous: Observation, action: int, current: Observation, done: bool) -> dict[str, float]:
        parts = {}
        for part in self.reward_parts:
            self.at_work = f"reward {part.name!r}"
            try:
                value = part.function(previous, action, current, done, self._meta_info)
                number = float(value)
            except Exception as error:
                raise RewardError(
                    f"reward {part.name!r} failed on sample {self.sample.id!r} "
                    f"(reply {current.context_text[:80]!r}): {type(error).__name__}: {error}"
                ) from error
            if not math.isfinite(number):
                raise RewardError(
                    f"reward {part.name!r} returned {value!r} for sample {self.sample.id!r} "
                    f"(reply {current.context_text[:80]!r}); it must return finite numbers"
                )
            parts[part.name] = number
        return parts
