"""Text generation as a token-level Markov decision process (gymnasium), for conversations of any number of turns.

One step is one token. An utterance ends at an end-of-sequence token, at the turn marker of the dialogue format, or at
the length limit. Then the partner answers, if there is one. The utterance and its answer are a turn, after which the
rewards are known and the next prompt is the longer conversation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl4dialog.core.errors import ConfigError, DataError, PartnerError, RewardError, RL4DialogError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.protocols import BatchedConversationReward, ConversationReward, Partner
from rl4dialog.core.reward_parts import RewardPart, weighted_sum
from rl4dialog.core.types import (
    AGENT,
    LABELS,
    PARTNER,
    Dialogue,
    EndedBy,
    Frame,
    PartnerReply,
    Prompt,
    PromptTurn,
    Sample,
    Turn,
)
from rl4dialog.envs.observation import Observation
from rl4dialog.envs.shared_samples import SharedSamples, sampling_probabilities, sampling_weights
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History, with_turns

FirstSpeaker = Literal["sample", "agent", "partner"]


class TextGenEnv(gym.Env):
    """Conversations of a language model as a token-level Markov decision process.

    Observation: dict of int64 arrays (see :meth:`Observation.to_dict`). Action: a token id, ``Discrete(V)``.

    An episode is a conversation of at most ``max_turns`` agent utterances. ``truncated`` means that it ended with an
    utterance that was cut at the length limit; every other end is ``terminated``.

    Args:
        end_of_turn: Detects the end of a reply, and has the tokenizer.
        samples: Prompts with references, or pairs of a sample and its sampling weight.
        reward_parts: Rewards that are computed here. The environment's reward is their sum with the weights of the
            first iteration.
        max_prompt_length: P, in tokens. The oldest utterances of a longer conversation are dropped whole.
        max_episode_length: T, the maximum number of tokens of one agent utterance.
        vocab_size: V, the number of rows of the model's embedding.
        prompt_truncation_side: Side at which a sample's prompt is truncated if it is longer than P.
        max_turns: Maximum number of agent utterances per conversation.
        priority_scale: Exponent of the samples' weights; samples are drawn with probability proportional to the result.
            With 0, or equal weights, every sample occurs once per round.
        partner: Answers each agent utterance; required for more than one turn.
        frame: Markup around the utterances of a conversation; by default each is on a separate line, or before the turn
            marker.
        first_speaker: ``sample`` if the agent answers the sample's last utterance; ``agent`` or ``partner`` for a
            conversation without the sample's utterances.
        max_partner_length: Maximum number of tokens of a partner's utterance; ``None`` for no limit.
        context_turns: Maximum number of utterances in a prompt; ``None`` for all that fit.
        end_when: Regular expressions, by ``agent`` and ``partner``, in an utterance after which the conversation ends.
            The match is removed from the partner's utterance.
        shares_dialogues: Whether the infos contain the conversation, for rewards in the main process.

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
        frame: Frame | None = None,
        priority_scale: float = 1.0,
        first_speaker: FirstSpeaker = "sample",
        max_partner_length: int | None = None,
        context_turns: int | None = None,
        end_when: Mapping[str, Sequence[str]] | None = None,
        shares_dialogues: bool = False,
    ) -> None:
        super().__init__()
        if not samples:
            raise DataError("an environment needs at least one sample")
        if max_turns > 1 and partner is None:
            raise ConfigError(f"env.args.max_turns is {max_turns}, which needs a partner: set env.args.partner")
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
        self._frame = frame or _plain_frame(end_of_turn.marker)
        self._first_speaker = first_speaker
        self._max_partner_length = max_partner_length
        self._context_turns = context_turns
        self._end_when = {side: _any_of((end_when or {}).get(side, ())) for side in ("agent", "partner")}
        self._shares_dialogues = shares_dialogues or any(_reads_dialogues(part) for part in reward_parts)
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
        if not ended and len(current.context_ids) < self.max_episode_length:
            parts = self._raw_rewards(previous, int(action), current, done=False)
            info = {"sample_id": self.sample.id, "utterance_over": False, "utterance_truncated": False}
            return float(weighted_sum(self.reward_parts, parts)), False, False, {**info, "reward_parts": parts}
        return self._settle(previous, int(action), current, ended, self._answer(current.context_text))

    def _answer(self, said: str) -> PartnerReply:
        """Ask the partner, if there is one."""
        if self._partner is None:
            return PartnerReply()
        return self._asked(self._partner, lambda: self._partner.reply([*self._texts, said]))  # type: ignore[union-attr]

    def _asked(self, partner: Partner, ask: Callable[[], Any]) -> PartnerReply:
        self.at_work = "the partner"
        try:
            reply = checked_reply(ask(), type(partner).__name__)
        except RL4DialogError:
            raise
        except Exception as error:
            raise PartnerError(
                f"partner {type(partner).__name__} failed on sample {self.sample.id!r}: {type(error).__name__}: {error}"
            ) from error
        if reply.failed is not None:
            raise PartnerError(f"partner {type(partner).__name__} failed on sample {self.sample.id!r}: {reply.failed}")
        if reply.text is None:
            return reply
        return self._as_heard(reply, reply.text)

    def _as_heard(self, reply: PartnerReply, text: str) -> PartnerReply:
        """Remove markup and the sign of the end from what the partner said, and cut it at the length limit."""
        shown = self._end_when["partner"].sub(" ", text) if self._end_when["partner"] is not None else text
        leaves = reply.leaves or shown != text
        for markup in self._frame.markup:
            shown = shown.replace(markup, " ")
        if self._max_partner_length is not None:
            ids = self.tokenizer(shown, add_special_tokens=False, verbose=False)["input_ids"]
            if len(ids) > self._max_partner_length:
                shown = str(self.tokenizer.decode(ids[: self._max_partner_length]))
        return replace(reply, text=shown.strip(), leaves=leaves)

    def _settle(
        self, previous: Observation, action: int, current: Observation, ended: bool, reply: PartnerReply
    ) -> tuple[float, bool, bool, dict[str, Any]]:
        """Complete a turn: the agent's utterance is over, and its answer is known."""
        said = current.context_text
        self._turns.append(Turn(said, AGENT, paid=reply.reward, truncated=not ended))
        if reply.text is not None:
            self._turns.append(Turn(reply.text, PARTNER))
        self._turn += 1
        ended_by = self._end(reply, said, ended)
        terminated = ended_by is not None and ended_by != "length"
        dialogue = self._dialogue(ended_by) if self._shares_dialogues else None
        parts = self._raw_rewards(previous, action, current, ended_by is not None, is_turn=True, dialogue=dialogue)
        info: dict[str, Any] = {
            "sample_id": self.sample.id,
            "utterance_over": True,
            "utterance_truncated": not ended,
            "reward_parts": parts,
            "final_observation": current,
            "turn": self._turn - 1,
            "context_dropped": self._history.n_dropped > 0,
            "partner_echoes": reply.text is not None and reply.text == said,
        }
        if dialogue is not None:
            info["dialogue"] = dialogue
        if ended_by is not None:
            info["ended_by"] = ended_by
            if self._partner is not None:
                info["outcome"] = dict(self._partner.outcome())
        else:
            self._history.go_on(current.context_ids, said, reply.text or "", self.end_of_turn)
            self._begin_utterance(reply.info)
        return float(weighted_sum(self.reward_parts, parts)), terminated, ended_by == "length", info

    def _end(self, reply: PartnerReply, said: str, ended: bool) -> EndedBy | None:
        """Cause of the conversation's end, if this turn ends it."""
        is_last = self._turn >= self.max_turns
        # A partner with nothing more to say does not end a conversation whose turns are over anyway.
        if reply.leaves and not (is_last and reply.text is None):
            return "partner"
        if self._end_when["agent"] is not None and self._end_when["agent"].search(said):
            return "agent"
        if not is_last:
            return None
        return "max_turns" if ended else "length"

    def _dialogue(self, ended_by: EndedBy | None) -> Dialogue:
        outcome = dict(self._partner.outcome()) if self._partner is not None else {}
        return Dialogue(
            self.sample.id,
            tuple(self._turns),
            meta_data=self._sample_info,
            n_given=self._n_given,
            outcome=outcome,
            ended_by=ended_by,
        )

    @property
    def _texts(self) -> list[str]:
        """All utterances so far."""
        return [turn.text for turn in self._turns]

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
        self.sample, self._partner_seed = sample, partner_seed
        self._sample_info = sample.meta_data or {}
        if self._partner is not None:
            self._asked_to_begin(self._partner)
        self._turn, self._turns, self._n_given = 0, [], 0
        prompt: str = sample.prompt_or_input_text
        if self._first_speaker == "sample":
            given = self._sample_info.get("history", [prompt])
            self._turns = [Turn(text, AGENT if (len(given) - i) % 2 == 0 else PARTNER) for i, text in enumerate(given)]
            self._n_given = len(given)
        else:
            prompt = self._opened(prompt)
        prompt = with_turns(prompt, self.end_of_turn.marker)
        side = self._prompt_truncation_side
        self._history = History(self.tokenizer, prompt, self.max_prompt_length, side, self._frame, self._context_turns)
        self._begin_utterance(None)

    def _begin_utterance(self, said: Mapping[str, Any] | None) -> None:
        """Start the next utterance of the agent.

        Args:
            said: Info of the partner's last answer; ``None`` at the start of the conversation.
        """
        references, meta_info = self.sample.references, self._sample_info
        if said is not None:  # the sample's references and labels are those of the first reply
            references = list(said.get("references", []))
            kept = {name: value for name, value in meta_info.items() if name not in LABELS}
            meta_info = {**kept, **said.get("labels", {}), "history": self._texts}
        self.state = Observation(
            self._history.prompt_ids,
            [],
            self._history.prompt,
            references,
            meta_info,
            self.end_of_turn,
            self.max_prompt_length,
            self.max_episode_length,
        )

    def _asked_to_begin(self, partner: Partner) -> None:
        self.at_work = "the partner"
        try:
            partner.reset(self._sample_info, self._partner_seed)
        except RL4DialogError:
            raise
        except Exception as error:
            raise PartnerError(
                f"partner {type(partner).__name__} failed to begin with sample {self.sample.id!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _opened(self, prompt: str) -> Prompt:
        """Return the prompt of a conversation that has not begun, or that the partner opens."""
        if not isinstance(prompt, Prompt):
            raise DataError(
                f"env.args.first_speaker is {self._first_speaker!r}, but sample {self.sample.id!r} is a plain text and "
                f"no dialogue; use first_speaker: sample"
            )
        if self._first_speaker == "agent":
            if prompt.agent_opening is None:
                raise DataError(
                    "env.args.first_speaker is 'agent', but the chat template rejects a conversation that the "
                    "assistant starts; use first_speaker: partner or sample"
                )
            return Prompt([], prompt.agent_opening, prompt.later_opening, prompt.agent_opening)
        assert self._partner is not None
        reply = self._asked(self._partner, self._partner.open)
        self._turns = [Turn(reply.text or "", PARTNER)]
        turn = PromptTurn(reply.text or "", self._frame.to_agent)
        return Prompt([turn], prompt.later_opening, agent_opening=prompt.agent_opening)

    # -- reward ---------------------------------------------------------------------------------------------------

    def _raw_rewards(
        self,
        previous: Observation,
        action: int,
        current: Observation,
        done: bool,
        is_turn: bool = False,
        dialogue: Dialogue | None = None,
    ) -> dict[str, float]:
        """Raw values of all rewards at a token.

        Args:
            previous: State before the token.
            action: The token.
            current: State after the token.
            done: Whether the conversation ended with this token.
            is_turn: Whether it completed a turn.
            dialogue: The conversation, if a reward reads it.
        """
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
                    f"(reply {current.context_text[:80]!r}): {type(error).__name__}: {error}"
                ) from error
            if not math.isfinite(number):
                raise RewardError(
                    f"reward {part.name!r} returned {value!r} for sample {self.sample.id!r} "
                    f"(reply {current.context_text[:80]!r}); it must return finite numbers"
                )
            parts[part.name] = number
        return parts


def _plain_frame(marker: str | None) -> Frame:
    """Markup of utterances on separate lines, or before the turn marker."""
    return Frame(f" {marker}", marker, (marker,)) if marker else Frame("\n", "\n")


def _any_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def _reads_dialogues(part: RewardPart) -> bool:
    return isinstance(part.function, (ConversationReward, BatchedConversationReward))
