"""What evaluations of offline runs measure by the values of the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.core.types import Sample
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.talk import Talk
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.training.building.policy import algorithm_class, is_guided
from rl4dialog.training.building.texts import Lengths
from rl4dialog.training.evaluation import VALUES

ADVANTAGE, ADVANTAGES, KL_TO_PRIOR, Q_RANK, REJECTED = "advantage", "advantages", "kl_to_prior", "q_rank", "rejected"


def value_numbers(config: OfflineConfig, lengths: Lengths) -> ValueNumbers | None:
    return ValueNumbers(config, lengths) if is_guided(config) else None


class ValueNumbers:
    """Numbers of an evaluation that are computed from the values of the policy.

    ``advantage`` is the mean advantage Q(s, a) - V(s) of the agent's tokens, if the algorithm learns V, and
    ``kl_to_prior`` the mean KL divergence of the guided policy from the language model before each of them, in nats, if
    tokens are guided. ``q_rank`` is measured on samples with a ``rejected`` reply in their meta data, as in logs of
    preferences: the share of pairs in which the values rank the reference above it; ties count half.
    """

    def __init__(self, config: OfflineConfig, lengths: Lengths) -> None:
        self._lengths, self._batch_size = lengths, config.train_evaluation.eval_batch_size
        self._in_encoder = config.is_encoder_decoder
        self._learns_v = algorithm_class(config).has_values

    @torch.no_grad()
    def __call__(
        self, policy: Any, samples: Sequence[Sample], talks: Sequence[Talk]
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics, and what each record gets: means, the mean advantage of each utterance, and the value before it."""
        said = [(reply.prompt, reply.text) for talk in talks for reply in talk.replies]
        found: dict[str, list[np.ndarray]] = {}
        batches = self._batches(policy, said)
        if self._learns_v:
            found[ADVANTAGE] = _per_reply(policy.advantages, batches)
            before = iter(_per_reply(policy.predict_sequence_values, batches))
        if not policy.reranked and not policy.guidance.searches:
            found[KL_TO_PRIOR] = _per_reply(policy.kl_to_prior, batches)
        records: list[dict[str, Any]] = [{} for _ in talks]
        metrics: dict[str, float] = {}
        for key, numbers in found.items():
            left = iter(numbers)
            for record, talk in zip(records, talks, strict=True):
                of_talk = [next(left) for _ in talk.replies]
                record[key] = float(np.concatenate(of_talk).mean()) if of_talk else math.nan
                if key == ADVANTAGE:
                    record[ADVANTAGES] = [float(each.mean()) for each in of_talk]
                    record[VALUES] = [float(next(before)[0]) for _ in of_talk]
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
        chosen, rejected = (
            np.concatenate([policy.ranks(batch).cpu().numpy() for batch in self._batches(policy, said)])
            for said in ([(pair[0], pair[i]) for pair in pairs] for i in (1, 2))
        )
        return {Q_RANK: float(((chosen > rejected) + (chosen == rejected) / 2).mean())}

    def _batches(self, policy: Any, pairs: Sequence[tuple[str, str]]) -> list[Replies]:
        end, lengths = policy.end_of_turn, self._lengths
        limits = lengths.prompt, lengths.truncation_side, lengths.turn_end
        batches = []
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
    return [row for batch in batches for row in batch.per_row(numbers_of(batch)[batch.response_mask])]
