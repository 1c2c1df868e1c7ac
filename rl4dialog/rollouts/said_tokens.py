"""Tokens of the agent's utterances on the turns of a conversation, as they are logged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rl4dialog.core.types import AGENT, SYSTEM_KEY, Dialogue, Turn, system_text


@dataclass
class SaidTokens:
    """Tokens of one utterance of the agent.

    Attributes:
        ids: Token ids, the end included.
        log_probs: Log-probabilities under the policy that sampled them, before top-k and other filters. Shape (n,).
            ``None`` if no policy spoke.
        rewards: Task rewards, without the KL penalty. Shape (n,). ``None`` if there are none.
    """

    ids: Sequence[int] | np.ndarray
    log_probs: np.ndarray | None = None
    rewards: np.ndarray | None = None


def with_tokens(
    dialogue: Dialogue, said: Iterable[SaidTokens], prompt: str, tokenizer: str, is_cut: bool = False
) -> Dialogue:
    """Return a conversation with the tokens of what the agent said in it.

    A turn whose reward is all on its last token has this as ``reward``; otherwise, its ``token_rewards`` hold all.

    Args:
        dialogue: The conversation.
        said: Tokens of the agent's utterances, in order.
        prompt: Its prompt, of which the texts before the first utterance are kept in the meta data.
        tokenizer: Hash of the tokenizer.
        is_cut: Whether the value after the last turn is to be bootstrapped.
    """
    tokens = iter(said)
    turns = [_with_tokens(turn, next(tokens)) if turn.speaker == AGENT else turn for turn in dialogue.said]
    system = system_text(prompt)
    return replace(
        dialogue,
        turns=(*dialogue.turns[: dialogue.n_given], *turns),
        meta_data={**dialogue.meta_data, SYSTEM_KEY: system} if system else dialogue.meta_data,
        terminated=not is_cut,
        tokenizer=tokenizer,
    )


def _with_tokens(turn: Turn, said: SaidTokens) -> Turn:
    known: dict[str, object] = {"ids": tuple(map(int, said.ids))}
    if said.log_probs is not None:
        known["log_probs"] = tuple(map(_short, said.log_probs))
    if said.rewards is not None:
        rewards = tuple(map(_short, said.rewards))
        is_dense = any(rewards[:-1])
        known |= {"reward": 0.0, "token_rewards": rewards} if is_dense else {"reward": rewards[-1]}
    return replace(turn, **known)  # type: ignore[arg-type]


def _short(number: np.floating) -> float:
    """The shortest number that is this one in its precision, which takes less space in a file."""
    return float(str(number))
