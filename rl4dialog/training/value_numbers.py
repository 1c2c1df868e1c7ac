"""What the values of a policy say about the replies of an evaluation, and how far they move the language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import OfflineConfig, TextConfig
from rl4dialog.core.types import Sample
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.conversing import Talk
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.training.building.lengths import Lengths
from rl4dialog.training.building.policy import is_guided

ADVANTAGE, ADVANTAGES, KL_TO_PRIOR, Q_RANK, REJECTED = "advantage", "advantages", "kl_to_prior", "q_rank", "rejected"


class ValueNumbers:
    """Numbers of an evaluation that are computed from the values of the policy.

    ``advantage`` is the mean advantage Q(s, a) - V(s) of the agent's tokens, if the algorithm learns V, and
    ``kl_to_prior`` the mean KL divergence of the guided policy from the language model before each of them, in nats, if
    tokens are guided. ``q_rank`` is measured on samples with a ``rejected`` reply in their meta data, as in logs of
    preferences: the share of pairs in which the values rank the reference above it; ties count half.

    Args:
        config: The run's config.
        lengths: The run's length limits.
        batch_size: Replies per pass.
    """

    def __init__(self, config: OfflineConfig, lengths: Lengths, batch_size: int) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._in_encoder = config.is_encoder_decoder
        self._learns_v = OfflineAlgorithmRegistry.resolve(config.alg.id).has_values

    @torch.no_grad()
    def of_evaluation(
        self, policy: Any, samples: Sequence[Sample], talks: Sequence[Talk]
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Compute the numbers of an evaluation.

        Args:
            policy: The policy that spoke.
            samples: The samples.
            talks: The conversations about them.

        Returns:
            The metrics; and for each conversation what its record gets: its means, and in ``advantages`` the mean of
            each utterance of the agent.
        """
        prompts = [prompt for talk in talks for prompt in talk.prompts]
        replies = [reply for talk in talks for reply in talk.replies]
        ends = np.cumsum([len(talk.replies) for talk in talks])[:-1]
        found: dict[str, list[np.ndarray]] = {}
        batches = self._batches(policy, prompts, replies)
        if self._learns_v:
            found[ADVANTAGE] = _per_reply(policy.advantages, batches)
        if not policy.reranked and not policy.guidance.searches:
            found[KL_TO_PRIOR] = _per_reply(policy.kl_to_prior, batches)
        records: list[dict[str, Any]] = [{} for _ in talks]
        metrics: dict[str, float] = {}
        for key, numbers in found.items():
            of_talks = [numbers[a:b] for a, b in zip([0, *ends], [*ends, len(numbers)], strict=True)]
            for record, of_talk in zip(records, of_talks, strict=True):
                record[key] = float(np.concatenate(of_talk).mean()) if of_talk else math.nan
                if key == ADVANTAGE:
                    record[ADVANTAGES] = [float(each.mean()) for each in of_talk]
            known = [record[key] for record in records if not math.isnan(record[key])]
            metrics |= {key: sum(known) / len(known)} if known else {}
        return metrics | self._ranks(policy, samples), records

    def _ranks(self, policy: Any, samples: Sequence[Sample]) -> dict[str, float]:
        pairs = [
            (sample.prompt_or_input_text, sample.references[0], sample.meta_data[REJECTED])
            for sample in samples
            if sample.meta_data and isinstance(sample.meta_data.get(REJECTED), str) and sample.references
        ]
        if not pairs:
            return {}
        prompts, *both = zip(*pairs, strict=True)
        chosen, rejected = (
            np.concatenate([policy.ranks(batch).cpu().numpy() for batch in self._batches(policy, prompts, replies)])
            for replies in both
        )
        return {Q_RANK: float(((chosen > rejected) + (chosen == rejected) / 2).mean())}

    def _batches(self, policy: Any, prompts: Sequence[str], replies: Sequence[str]) -> list[Replies]:
        end, lengths = policy.end_of_turn, self._lengths
        limits = lengths.prompt, lengths.truncation_side, lengths.turn_end
        pairs, batches = [*zip(prompts, replies, strict=True)], []
        for start in range(0, len(pairs), self._batch_size):
            chosen = pairs[start : start + self._batch_size]
            said = [
                encode_reply(end.tokenizer, reply, end.marker, lengths.reply, "" if self._in_encoder else prompt)
                for prompt, reply in chosen
            ]
            read = [encode_prompt(end.tokenizer, prompt, *limits) for prompt, _ in chosen]
            batches.append(Replies.from_ids(read, said, policy.device))
        return batches


def _per_reply(numbers_of: Callable[[Replies], Tensor], batches: Sequence[Replies]) -> list[np.ndarray]:
    """Numbers of the tokens of each reply."""
    return [row for batch in batches for row in batch.per_row(numbers_of(batch)[batch.response_mask])]


def value_numbers(config: TextConfig, lengths: Lengths, batch_size: int) -> ValueNumbers | None:
    """The numbers of a run's evaluations; ``None`` if no values guide its policy."""
    if not isinstance(config, OfflineConfig) or not is_guided(config):
        return None
    return ValueNumbers(config, lengths, batch_size)
