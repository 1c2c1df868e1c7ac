"""Selects what people are to judge, at random, or what a reward model could learn most from.

The units are pairs of replies, single replies, and whole conversations with the run's partner.

Sources of the strategies: the least certain choice is uncertainty sampling (Lewis and Gale 1994, arXiv cmp-lg/9407020);
the disagreement of an ensemble selects queries in Christiano et al. 2017 (arXiv 1706.03741). That paper reports that
this sometimes impaired learning, so `random` is the default.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies, Unit, queue_id
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_text import dialogue_text, persona_in, replied
from rl4dialog.data.splits import shuffled
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.simulation import begin_conversing
from rl4dialog.runs.progress import Progress
from rl4dialog.scores.reward_models import RewardModel
from rl4dialog.training.evaluation import is_kept
from rl4dialog.training.random_state import random_states_kept

Strategy = Literal["random", "uncertain", "disagreement", "gap"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
_NO_CANDIDATES: dict[Unit, str] = {
    "pair": "no prompt has two different replies, so there is no pair to judge; use a higher temperature",
    "reply": "there are no replies to judge",
    "conversation": "all conversations failed, so there is none to judge; rl4dialog simulate shows what is wrong",
}


# Conversations about the same sample, of which at most one reply, pair or conversation is selected. They are whole, or
# for pairs and single replies, they end with different replies.
Candidates: TypeAlias = Sequence[Dialogue]


def size_of(unit: Unit) -> int:
    """Number of replies, or conversations, that are shown together."""
    return 2 if unit == "pair" else 1


def check_strategy(strategy: Strategy, reward_models: Sequence[str], unit: Unit = "pair") -> None:
    """Check that a strategy can select such units, and has reward models if it needs them."""
    if size_of(unit) == 1 and strategy in ("uncertain", "gap"):
        raise ConfigError(
            f"--strategy {strategy} compares two replies, so it needs --unit pair; use random or disagreement with "
            f"--unit {unit}"
        )
    if strategy == "random" and reward_models:
        raise ConfigError("--strategy random reads no reward model; remove --reward_model, or choose another strategy")
    if strategy != "random" and not reward_models:
        raise ConfigError(f"--strategy {strategy} needs --reward_model with the folder of a reward model run")


def generate_candidates(
    loaded: LoadedPolicy, split: str, n_prompts: int, n_replies: int, seed: int, unit: Unit = "pair"
) -> tuple[list[Candidates], int]:
    """Different replies to prompts of the datapool, or conversations about its samples, drawn at random.

    Also the number of samples without any or, for pairs, without two different replies.
    """
    samples = loaded.data.samples(split)
    drawn = [samples[i] for i in shuffled(len(samples), f"select/{seed}")[:n_prompts]]
    repeated = [sample for sample in drawn for _ in range(n_replies)]
    made = (_conversations if unit == "conversation" else _replies)(loaded, repeated, derive_seed(seed, "select"))
    usable: list[Candidates] = []
    for _ in drawn:
        own = [each for each in itertools.islice(made, n_replies) if each is not None]
        different = {tuple(turn.text for turn in each.turns): each for each in own}
        if len(different) >= size_of(unit):
            usable.append(list(different.values()))
    return usable, len(drawn) - len(usable)


def _replies(loaded: LoadedPolicy, samples: Sequence[Sample], seed: int) -> Iterator[Dialogue]:
    texts = loaded.generate([sample.prompt_or_input_text for sample in samples], seed=seed)
    for sample, text in zip(samples, texts, strict=True):
        yield replied(sample.prompt_or_input_text, text, sample.meta_data)


def _conversations(loaded: LoadedPolicy, samples: Sequence[Sample], seed: int) -> Iterator[Dialogue | None]:
    """Conversations with the run's partner; ``None`` for one that failed, if the run masks failures."""
    conversing, size = begin_conversing(loaded), loaded.config.train_evaluation.eval_batch_size
    with Progress("Conversations", "conversation", len(samples), line_every_s=30.0) as progress:
        for start in range(0, len(samples), size):
            batch = samples[start : start + size]
            seeds = [derive_seed(seed, "conversation", start + i) for i in range(len(batch))]
            with random_states_kept():
                torch.manual_seed(derive_seed(seed, "batch", start))
                talks = conversing(loaded.policy, batch, seeds, **loaded.generation_kwargs)
            for talk in talks:
                yield talk.dialogue if is_kept(talk, loaded.config) else None
            progress.advance(len(batch))


def select(
    candidates: Sequence[Candidates],
    n: int,
    model_name: str,
    strategy: Strategy = "random",
    reward_models: Sequence[RewardModel] = (),
    seed: int = 0,
    unit: Unit = "pair",
) -> list[QueuedReplies]:
    """Select at most one pair, single reply or conversation about each sample.

    With d, the difference of a pair's scores by each model of the reward models: ``uncertain`` selects the pairs with
    the smallest absolute mean of d, ``gap`` those with the largest, and ``disagreement`` those with the largest
    standard deviation of d. For single replies and conversations, d is the score itself.
    """
    if not candidates:
        raise DataError(_NO_CANDIDATES[unit])
    rng, size = random.Random(f"pairs/{seed}"), size_of(unit)
    found = [(i, chosen) for i, each in enumerate(candidates) for chosen in itertools.combinations(each, size)]
    scores: list[float] = [rng.random() for _ in found]
    if strategy != "random":
        scores = _scores([chosen for _, chosen in found], strategy, reward_models).tolist()
    best: dict[int, int] = {}  # row of each candidate
    for row, (i, _) in enumerate(found):
        if i not in best or scores[row] > scores[best[i]]:
            best[i] = row
    queue = []
    for row in sorted(best.values(), key=lambda row: -scores[row])[:n]:
        score = None if strategy == "random" else scores[row]
        queue.append(_queued(found[row][1], model_name, strategy, score, rng.random() < 0.5, unit))
    return queue


def _scores(
    found: Sequence[tuple[Dialogue, ...]], strategy: Strategy, reward_models: Sequence[RewardModel]
) -> NDArray[np.float64]:
    """How much is expected of each pair, single reply or conversation. Shape (number of them,)."""
    columns = []
    for model in reward_models:
        sides = [[dialogue_text(each, model.card.context_size) for each in side] for side in zip(*found, strict=True)]
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
    chosen: Sequence[Dialogue], model: str, strategy: Strategy, score: float | None, in_order: bool, unit: Unit
) -> QueuedReplies:
    said = _alternating(chosen[0].turns)
    last = len(said) - (1 if chosen[0].turns[-1].speaker == AGENT else 2)
    texts = [_alternating(each.turns)[last] for each in chosen]
    persona = persona_in(chosen[0].meta_data)
    return QueuedReplies(
        queue_id(persona, said[:last], [*texts, *said[last + 1 :]]),
        said[:last],
        [JudgedReply(model, text) for text in (texts if in_order else texts[::-1])],
        persona or None,
        strategy,
        score,
        is_conversation=unit == "conversation",
        answer=said[last + 1] if last + 1 < len(said) else None,
    )


def _alternating(turns: Sequence[Turn]) -> list[str]:
    """What both sides said in turn, with an empty text where the partner said nothing between two of the agent."""
    said: list[str] = []
    for before, turn in zip((None, *turns), turns, strict=False):
        said += [""] if before is not None and before.speaker == turn.speaker == AGENT else []
        said.append(turn.text)
    return said
