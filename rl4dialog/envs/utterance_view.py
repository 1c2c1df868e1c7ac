"""The environment with one step per agent utterance, as used by vectorized environments.

A step of this view consists of the wrapped environment's steps for each token of the utterance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import AGENT, PartnerReply
from rl4dialog.envs.text_generation import TextGenEnv

PADDING_ACTION = -1
LEAVES_ACTION = -2
FAILED_ACTION = -3
# Keys of the token-level info that the utterance's info replaces or omits.
_OF_A_TOKEN = ("utterance_over", "reward_parts", "final_observation")


class UtteranceView(gym.Env):
    """Action: int64 ``[T]``, the token ids of the speaker's utterance, padded with -1 on the right.

    An action of only padding means "wait": it changes nothing, and returns the current observation. An action that
    starts with -2 means that a partner outside of the environment leaves, and one with -3 that it failed.

    The info of a step that completes a turn contains ``reward_parts``, the raw rewards (n,) of the agent's utterance by
    name, the texts for rewards of whole replies, and the environment's info of the last token. If a reward function or
    the partner failed or timed out, the episode ends and the info contains ``error`` with a message, and
    ``partner_failed`` if it was the partner: the main process raises it, as an exception here would kill the worker.

    Args:
        env: The token-level environment.
        timeout_s: Time limit of a step, that is, of its rewards and the partner; by default none.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium declares it so)

    def __init__(self, env: TextGenEnv, timeout_s: float | None = None) -> None:
        super().__init__()
        self.env, self._timeout_s = env, timeout_s
        self.observation_space = env.observation_space
        length = int(env.observation_space["context_ids"].shape[0])  # type: ignore[index]
        vocab_size = int(env.action_space.n)  # type: ignore[attr-defined]
        lowest = FAILED_ACTION if env.partner_is_outside else PADDING_ACTION
        self.action_space = spaces.Box(lowest, vocab_size - 1, (length,), np.int64)
        self._observation: dict[str, np.ndarray] = {}
        self._parts: dict[str, list[float]] = {}  # rewards of the agent's utterance so far
        self._failure: dict[str, Any] = {}  # info of a failure of this step, or of the start before it
        self._is_prepared = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if not self._is_prepared:
            self._prepare(seed, options)
        self._is_prepared = False
        if not self._failure:
            self._tried(self.env.start)
        return self._first_observation(), {"sample_id": self.env.sample.id}

    def _first_observation(self) -> dict[str, np.ndarray]:
        self._parts = {part.name: [] for part in self.env.reward_parts}
        self._observation = self.env.blank() if self._failure else self.env.observe()
        return self._observation

    def _prepare(self, seed: int | None, options: dict[str, Any] | None) -> None:
        super().reset(seed=seed)
        self._tried(lambda: self.env.prepare(seed, options))

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Call within the time limit. The next step reports a failure of a start, which has no way to fail."""
        self._failure = {}
        try:
            with time_limit(self._timeout_s):
                return call()
        except (RewardError, PartnerError) as error:
            message, partner_failed = str(error), isinstance(error, PartnerError)
        except TimeIsUp:
            partner_failed = self.env.at_work == "the partner"
            message = (
                f"{self.env.at_work} had not returned for sample {self.env.sample.id!r} after {self._timeout_s:g} s; "
                f"reward_fn.timeout_s sets this limit (null disables it)"
            )
        self._failure = {"error": message, "partner_failed": partner_failed, "sample_id": self.env.sample.id}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Perform one whole utterance."""
        tokens = _tokens(action)
        if not tokens:
            return self._observation, 0.0, False, False, {}
        step = None if self._failure else self._tried(lambda: self._say(tokens))
        return step or (self._observation, 0.0, True, False, {**self._failure})

    @property
    def partner_waits(self) -> bool:
        """Whether :meth:`expect_reset` and :meth:`expect_step` have an effect."""
        return self.env.partner_waits

    def expect_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin the next :meth:`reset`, which must follow and then ignores its arguments, without waiting."""
        if self.partner_waits:
            self._prepare(seed, options)
            self._is_prepared = True

    def expect_step(self, action: np.ndarray) -> None:
        """Let the partner prepare its answer to an utterance, of which :meth:`step` must follow, without waiting."""
        if self.partner_waits and not self._failure and (tokens := _tokens(action)):
            self.env.conversation.expect(self.env.end_of_turn.reply_text(tokens))

    def _say(self, tokens: list[int]) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        total = 0.0
        if tokens[0] in (LEAVES_ACTION, FAILED_ACTION):
            failed = "it gave no valid answer" if tokens[0] == FAILED_ACTION else None
            total, terminated, truncated, info = self.env.hear(PartnerReply(leaves=True, failed=failed))
            tokens = []
        n_skipped = self.env.skip(tokens) if tokens else 0
        if self.env.speaker == AGENT:
            for values in self._parts.values():
                values += [0.0] * n_skipped
        for i, token in enumerate(tokens[n_skipped:], n_skipped):
            reward, terminated, truncated, info = self.env.advance(token)
            total += reward
            if not info["utterance_over"]:
                self._keep(info)
            elif i + 1 < len(tokens):
                raise ValueError(f"the utterance ended after {i + 1} tokens, but {len(tokens)} were given")
        if not info["utterance_over"]:
            limit = self.env.state.max_episode_length
            raise ValueError(
                f"{len(tokens)} tokens do not end the utterance: it needs an end-of-turn token or {limit} tokens"
            )
        self._observation = self.env.observe()
        if "final_observation" not in info:  # the turn is not complete
            return self._observation, total, False, False, {"sample_id": info["sample_id"]}
        self._keep(info)
        spoken = info["final_observation"]
        whole = {
            **{name: value for name, value in info.items() if name not in _OF_A_TOKEN},
            "reward_parts": {name: np.array(values, dtype=np.float32) for name, values in self._parts.items()},
            "prompt_text": spoken.prompt_or_input_text,
            "gen_text": spoken.context_text,
            "ref_texts": spoken.target_or_reference_texts,
            "meta_info": spoken.meta_info,
        }
        self._parts = {name: [] for name in self._parts}
        return self._observation, total, terminated, truncated, whole

    def _keep(self, info: dict[str, Any]) -> None:
        for name, value in info.get("reward_parts", {}).items():
            self._parts[name].append(value)

    @property
    def reward_terms(self) -> list[RewardPart]:
        """Names, weights and clips of the rewards, without their functions."""
        return [dataclasses.replace(part, function=None) for part in self.env.reward_parts]

    def state_dict(self) -> dict[str, Any]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """Restore the episode start of :meth:`state_dict`, and return its observation."""
        self._tried(lambda: self.env.load_state_dict(state))
        return self._first_observation()


def _tokens(action: np.ndarray) -> list[int]:
    """Return the action's token ids."""
    ids = np.asarray(action).tolist()
    n_tokens = ids.index(PADDING_ACTION) if PADDING_ACTION in ids else len(ids)
    if any(id != PADDING_ACTION for id in ids[n_tokens:]):
        raise ValueError("an utterance's tokens must precede all padding (-1)")
    return ids[:n_tokens]
