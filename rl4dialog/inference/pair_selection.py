"""Selects pairs of replies for people to judge: at random, or those from which a reward model could learn most.

Sources of the strategies: the least certain choice is uncertainty sampling (Lewis and Gale 1994, arXiv cmp-lg/9407020);
the disagreement of an ensemble selects queries in Christiano et al. 2017 (arXiv 1706.03741). That paper reports that
this sometimes impaired learning, so `random` is the default.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import JudgedReply
from rl4dialog.core.feedback_queue import QueuedPair
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_text import persona_in, reply_text
from rl4dialog.data.splits import shuffled
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.metrics.reward_model import RewardModel

Strategy = Literal["random", "uncertain", "disagreement", "gap"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Candidates:
    """Different replies to the prompt of a sample."""

    sample: Sample
    replies: Sequence[str]


def check_strategy(strategy: Strategy, reward_models: Sequence[str]) -> None:
    """Check that there are reward models where a strategy needs them, and only there.

    Raises:
        ConfigError: If not.
    """
    if strategy == "random" and reward_models:
        raise ConfigError("--strategy random reads no reward model; remove --reward_model, or choose another strategy")
    if strategy != "random" and not reward_models:
        raise ConfigError(f"--strategy {strategy} needs --reward_model with the folder of a reward model run")


def generate_candidates(
    loaded: LoadedPolicy, split: str, n_prompts: int, n_replies: int, seed: int
) -> tuple[list[Candidates], int]:
    """Generate replies to prompts of the run's datapool.

    Args:
        loaded: The policy.
        split: Split of the prompts.
        n_prompts: Maximum number of prompts, drawn at random.
        n_replies: Replies to each prompt; equal ones count once.
        seed: Random seed.

    Returns:
        Prompts with at least two different replies, and the number of those with only one.
    """
    samples = loaded.data.samples(split)
    drawn = [samples[i] for i in shuffled(len(samples), f"select/{seed}")[:n_prompts]]
    prompts = [sample.prompt_or_input_text for sample in drawn for _ in range(n_replies)]
    texts = iter(loaded.generate(prompts, seed=derive_seed(seed, "select")))
    found = [Candidates(each, list(dict.fromkeys(itertools.islice(texts, n_replies)))) for each in drawn]
    usable = [each for each in found if len(each.replies) > 1]
    return usable, len(found) - len(usable)


def select_pairs(
    candidates: Sequence[Candidates],
    n_pairs: int,
    model_name: str,
    strategy: Strategy = "random",
    reward_models: Sequence[RewardModel] = (),
    seed: int = 0,
) -> list[QueuedPair]:
    """Select at most one pair of each prompt.

    With d, the difference of a pair's scores by each model of the reward models: ``uncertain`` selects the pairs with
    the smallest absolute mean of d, ``gap`` those with the largest, and ``disagreement`` those with the largest
    standard deviation of d.

    Args:
        candidates: Replies to choose from.
        n_pairs: Maximum number of pairs.
        model_name: Name of the model that wrote the replies.
        strategy: How pairs are selected.
        reward_models: Models of replies, for all strategies but ``random``.
        seed: Random seed of the selection, and of the order of the two replies.

    Returns:
        The pairs, best first.

    Raises:
        ConfigError: If ``disagreement`` has only one model.
        DataError: If there are no candidates.
    """
    if not candidates:
        raise DataError("no prompt has two different replies, so there is no pair to judge; use a higher temperature")
    rng = random.Random(f"pairs/{seed}")
    pairs = [(each, *pair) for each in candidates for pair in itertools.combinations(each.replies, 2)]
    scores: list[float] = [rng.random() for _ in pairs]
    if strategy != "random":
        scores = _scores(pairs, strategy, reward_models).tolist()
    best: dict[int, int] = {}  # pair of each candidate
    for row, (each, *_) in enumerate(pairs):
        if id(each) not in best or scores[row] > scores[best[id(each)]]:
            best[id(each)] = row
    chosen = sorted(best.values(), key=lambda row: -scores[row])[:n_pairs]
    return [
        _queued(*pairs[row], model_name, strategy, None if strategy == "random" else scores[row], rng) for row in chosen
    ]


def _scores(
    pairs: Sequence[tuple[Candidates, str, str]], strategy: Strategy, reward_models: Sequence[RewardModel]
) -> NDArray[np.float64]:
    """How much is expected of each pair. Shape (number of pairs,)."""
    columns = []
    for model in reward_models:
        first, second = (
            [
                reply_text(each.sample.prompt_or_input_text, texts[i], each.sample.meta_data, model.card.context_size)
                for each, *texts in pairs
            ]
            for i in (0, 1)
        )
        columns.append(model.differences(first, second))
    differences = np.concatenate(columns, axis=-1)
    if strategy == "disagreement":
        if differences.shape[-1] == 1:
            raise ConfigError(
                "--strategy disagreement needs several models: a reward model with alg.ensemble, or several of them"
            )
        return np.asarray(differences.std(-1))
    gaps = np.abs(differences.mean(-1))
    return np.asarray(gaps if strategy == "gap" else -gaps)


def _queued(
    each: Candidates, first: str, second: str, model: str, strategy: Strategy, score: float | None, rng: random.Random
) -> QueuedPair:
    info: dict[str, Any] = each.sample.meta_data or {}
    turns = [str(text) for text in info.get("history", [each.sample.prompt_or_input_text])]
    persona = persona_in(info)
    texts = [first, second] if rng.random() < 0.5 else [second, first]
    return QueuedPair(
        content_hash([persona or "", *turns, first, second])[:32],
        turns,
        [JudgedReply(model, text) for text in texts],
        persona or None,
        strategy,
        score,
    )
