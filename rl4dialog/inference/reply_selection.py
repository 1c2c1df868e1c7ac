"""Selects replies for people to judge, single ones or pairs: at random, or those from which a reward model could learn.

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

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import JudgedReply
from rl4dialog.core.feedback_queue import QueuedReplies, queue_id
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_text import reply_text
from rl4dialog.data.splits import shuffled
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.metrics.reward_model import RewardModel
from rl4dialog.tasks.turn_goals.goals import opening_in

Strategy = Literal["random", "uncertain", "disagreement", "gap"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
Unit = Literal["pair", "reply"]
_SIZES = {"pair": 2, "reply": 1}


@dataclass(frozen=True)
class Candidates:
    """Different replies to the prompt of a sample."""

    sample: Sample
    replies: Sequence[str]


def check_strategy(strategy: Strategy, reward_models: Sequence[str], unit: Unit = "pair") -> None:
    """Check that a strategy can select such replies, and has reward models if it needs them.

    Raises:
        ConfigError: If not, or if there are reward models that it does not need.
    """
    if unit == "reply" and strategy in ("uncertain", "gap"):
        raise ConfigError(
            f"--strategy {strategy} compares two replies, so it cannot select single ones; use random or disagreement"
        )
    if strategy == "random" and reward_models:
        raise ConfigError("--strategy random reads no reward model; remove --reward_model, or choose another strategy")
    if strategy != "random" and not reward_models:
        raise ConfigError(f"--strategy {strategy} needs --reward_model with the folder of a reward model run")


def generate_candidates(
    loaded: LoadedPolicy, split: str, n_prompts: int, n_replies: int, seed: int, unit: Unit = "pair"
) -> tuple[list[Candidates], int]:
    """Generate replies to prompts of the run's datapool.

    Args:
        loaded: The policy.
        split: Split of the prompts.
        n_prompts: Maximum number of prompts, drawn at random.
        n_replies: Replies to each prompt; equal ones count once.
        seed: Random seed.
        unit: Whether pairs or single replies are to be selected.

    Returns:
        Prompts with at least one reply or, for pairs, two different ones, and the number of the other prompts.
    """
    samples = loaded.data.samples(split)
    drawn = [samples[i] for i in shuffled(len(samples), f"select/{seed}")[:n_prompts]]
    prompts = [sample.prompt_or_input_text for sample in drawn for _ in range(n_replies)]
    texts = iter(loaded.generate(prompts, seed=derive_seed(seed, "select")))
    found = [Candidates(each, list(dict.fromkeys(itertools.islice(texts, n_replies)))) for each in drawn]
    usable = [each for each in found if len(each.replies) >= _SIZES[unit]]
    return usable, len(found) - len(usable)


def select_replies(
    candidates: Sequence[Candidates],
    n: int,
    model_name: str,
    strategy: Strategy = "random",
    reward_models: Sequence[RewardModel] = (),
    seed: int = 0,
    unit: Unit = "pair",
) -> list[QueuedReplies]:
    """Select at most one pair, or single reply, of each prompt.

    With d, the difference of a pair's scores by each model of the reward models: ``uncertain`` selects the pairs with
    the smallest absolute mean of d, ``gap`` those with the largest, and ``disagreement`` those with the largest
    standard deviation of d. For single replies, d is the score itself.

    Args:
        candidates: Replies to choose from.
        n: Maximum number of pairs or single replies.
        model_name: Name of the model that wrote the replies.
        strategy: How pairs are selected.
        reward_models: Models of replies, for all strategies but ``random``.
        seed: Random seed of the selection, and of the order of the two replies.
        unit: What is selected.

    Returns:
        The pairs or single replies, best first.

    Raises:
        ConfigError: If ``disagreement`` has only one model.
        DataError: If there are no candidates.
    """
    if not candidates:
        raise DataError("no prompt has two different replies, so there is no pair to judge; use a higher temperature")
    rng = random.Random(f"pairs/{seed}")
    found = [(each, texts) for each in candidates for texts in itertools.combinations(each.replies, _SIZES[unit])]
    scores: list[float] = [rng.random() for _ in found]
    if strategy != "random":
        scores = _scores(found, strategy, reward_models).tolist()
    best: dict[int, int] = {}  # row of each candidate
    for row, (each, _) in enumerate(found):
        if id(each) not in best or scores[row] > scores[best[id(each)]]:
            best[id(each)] = row
    chosen = sorted(best.values(), key=lambda row: -scores[row])[:n]
    return [
        _queued(*found[row], model_name, strategy, None if strategy == "random" else scores[row], rng) for row in chosen
    ]


def _scores(
    found: Sequence[tuple[Candidates, tuple[str, ...]]], strategy: Strategy, reward_models: Sequence[RewardModel]
) -> NDArray[np.float64]:
    """How much is expected of each pair or single reply. Shape (number of them,)."""
    columns = []
    for model in reward_models:
        sides = [
            [
                reply_text(each.sample.prompt_or_input_text, text, each.sample.meta_data, model.card.context_size)
                for each, text in zip((each for each, _ in found), side, strict=True)
            ]
            for side in zip(*(texts for _, texts in found), strict=True)
        ]
        columns.append(model.differences(*sides) if len(sides) == 2 else model.standard_scores(*sides))
    by_model = np.concatenate(columns, axis=-1)
    if strategy == "disagreement":
        if by_model.shape[-1] == 1:
            raise ConfigError(
                "--strategy disagreement needs several models: a reward model with alg.ensemble, or several of them"
            )
        return np.asarray(by_model.std(-1))
    gaps = np.abs(by_model.mean(-1))
    return np.asarray(gaps if strategy == "gap" else -gaps)


def _queued(
    each: Candidates, texts: Sequence[str], model: str, strategy: Strategy, score: float | None, rng: random.Random
) -> QueuedReplies:
    info: dict[str, Any] = each.sample.meta_data or {}
    turns = [str(text) for text in info.get("history", [each.sample.prompt_or_input_text])]
    persona = opening_in(info)
    shown = list(texts) if rng.random() < 0.5 else list(texts)[::-1]
    return QueuedReplies(
        queue_id(persona, turns, texts),
        turns,
        [JudgedReply(model, text) for text in shown],
        persona or None,
        strategy,
        score,
    )
