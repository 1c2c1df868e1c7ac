"""What a chat needs of a model. This package knows no training: whoever starts a chat hands a model in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.policies.streaming import PartialReply
from rl4dialog.policies.token_details import TokenDetails
from rl4dialog.rewards.scoring import ReplyScores


class ChatModel(Protocol):
    """A model that replies."""

    @property
    def name(self) -> str:
        """Of the run or the model, for people and for records."""

    @property
    def dialogue_format(self) -> DialogueFormat:
        """Writes prompts from what was said."""

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """How replies are sampled if nothing else is said."""

    def stream(self, prompt: str, seed: int | None = None, **generation_kwargs: Any) -> Iterator[PartialReply]:
        """Reply to a prompt; the last item is the whole reply."""

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any]) -> ReplyScores:
        """The reward of one reply, and its parts.

        Raises:
            RL4DialogError: If there is no reward, or it needs what a chat has not.
        """

    def token_details(self, prompt: str, token_ids: Sequence[int]) -> TokenDetails:
        """What policy, critic and reference say about the tokens of a reply."""


def in_words(scores: ReplyScores) -> str:
    """The reward of one reply, and its parts."""
    parts = ", ".join(f"{name} {values[0]:.3f}" for name, values in scores.parts.items())
    return f"reward {scores.total[0]:.3f} ({parts})"
