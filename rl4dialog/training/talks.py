"""Replies to prompts or conversations about samples in an evaluation, their metrics, and what values say of them."""

from __future__ import annotations

import logging
import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import OfflineConfig, TextConfig
from rl4dialog.core.errors import ConfigError, PartnerError, RewardError
from rl4dialog.core.protocols import BaseMetric, DialogueMetric, MetricResult
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample, reply_dialogue
from rl4dialog.functional.distributed import all_gather_object, is_main_process, n_processes, process_index
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.talk import Reply, Talk, talk_of_one_reply
from rl4dialog.runs.progress import Progress
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.training.building.policy import is_guided
from rl4dialog.training.building.texts import Lengths

ADVANTAGE, ADVANTAGES, KL_TO_PRIOR, Q_RANK, REJECTED = "advantage", "advantages", "kl_to_prior", "q_rank", "rejected"
VALUES = "values"
"""Key of a record: the value of the state before each utterance of the agent."""


class ValueNumbers:
    """Numbers of an evaluation that are computed from the values of the policy.

    ``advantage`` is the mean advantage Q(s, a) - V(s) of the agent's tokens, if the algorithm learns V, and
    ``kl_to_prior`` the mean KL divergence of the guided policy from the language model before each of them, in nats, if
    tokens are guided. ``q_rank`` is measured on samples with a ``rejected`` reply in their meta data, as in logs of
    preferences: the share of pairs in which the values rank the reference above it; ties count half.
    """

    def __init__(self, config: OfflineConfig, lengths: Lengths, batch_size: int) -> None:
        self._lengths, self._batch_size = lengths, batch_size
        self._in_encoder = config.is_encoder_decoder
        self._learns_v = OfflineAlgorithmRegistry.resolve(config.alg.id).has_values

    @torch.no_grad()
    def of_evaluation(
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


def value_numbers(config: TextConfig, lengths: Lengths, batch_size: int) -> ValueNumbers | None:
    """The numbers of a run's evaluations; ``None`` if no values guide its policy."""
    if not isinstance(config, OfflineConfig) or not is_guided(config):
        return None
    return ValueNumbers(config, lengths, batch_size)


_logger = logging.getLogger(__name__)


def hold_talks(
    policy: LMActorCriticPolicy,
    samples: Sequence[Sample],
    sizes: Sequence[int],
    talk: Callable[..., list[Talk]],
    what: str,
    batch_size: int,
    generation_kwargs: dict[str, Any] | None,
    seed: int,
) -> list[Talk]:
    """Let a policy talk about each sample; one talk per sample, and none in all processes but the main one.

    Changes the random state. Samples of similar size, the length of their prompts, share a batch, to reduce padding.
    ``talk`` gets policy, samples, their indices and the generation settings (``None`` for those of the rollouts).
    """
    order = sorted(range(len(samples)), key=lambda i: sizes[i])
    batch_size = min(batch_size, math.ceil(len(order) / n_processes()) or 1)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    own: dict[int, Talk] = {}
    # The caller logs the final line, which has more details.
    progress = Progress(f"Evaluating {what}", "prompt", len(samples), line_every_s=60.0, line_at_end=False, stays=False)
    with progress:
        torch.manual_seed(derive_seed(seed, "process", process_index()) if process_index() else seed)
        for first in range(0, len(batches), n_processes()):
            # With sharded weights all processes must generate equally often, so the last batch is repeated if needed.
            rows = batches[min(first + process_index(), len(batches) - 1)]
            own |= zip(rows, talk(policy, [samples[i] for i in rows], rows, generation_kwargs or {}), strict=True)
            progress.advance(sum(map(len, batches[first : first + n_processes()])))
    found = all_gather_object(own)
    if not is_main_process():
        return []
    by_row = dict(ChainMap(*found))
    return [by_row[row] for row in range(len(samples))]


def give_replies(
    prompts: Sequence[list[int]],
    post_process: Callable[[str], str] | None,
    policy: LMActorCriticPolicy,
    samples: Sequence[Sample],
    rows: Sequence[int],
    generation_kwargs: dict[str, Any],
) -> list[Talk]:
    replies = generate_texts(policy, [prompts[row] for row in rows], generation_kwargs)
    if post_process is not None:
        replies = [_post_processed(reply, sample, post_process) for reply, sample in zip(replies, samples, strict=True)]
    return [talk_of_one_reply(sample, reply) for sample, reply in zip(samples, replies, strict=True)]


def converse(
    conversing: Conversing,
    seed: int,
    policy: LMActorCriticPolicy,
    samples: Sequence[Sample],
    rows: Sequence[int],
    generation_kwargs: dict[str, Any],
) -> list[Talk]:
    """Hold one conversation about each sample; the seed of the partner depends on the sample's index."""
    seeds = [derive_seed(seed, "partner", row) for row in rows]
    return conversing(policy, samples, seeds, **generation_kwargs)


def values_before(talk: Talk) -> dict[str, list[float]]:
    """What the record of a conversation gets, if its utterances have values."""
    known = [reply.of_tokens("values") for reply in talk.replies if reply.batch is not None]
    return {VALUES: [float(each[0]) for each in known if each is not None]} if known and known[0] is not None else {}


def is_kept(talk: Talk, config: TextConfig) -> bool:
    """Whether a conversation worked; one that failed is left out if the run masks such failures."""
    if talk.error is None:
        return True
    env, reward = config.env, config.reward_fn
    if talk.partner_failed and not (env is not None and env.args.partner_on_error == "mask"):
        raise PartnerError(talk.error)
    if not talk.partner_failed and not (reward is not None and reward.on_error == "mask"):
        raise RewardError(talk.error)
    return False


def compute_metrics(
    metrics: Sequence[BaseMetric | DialogueMetric], talks: Sequence[Talk], split_name: str, model: Any
) -> MetricResult:
    """Compute all metrics, by key: the score of each conversation, and that of all.

    Metrics of replies score each reply of a conversation, those with references only replies that have some; the score
    of the conversation is the mean of its replies. Conversations whose partner failed are left out. A metric that is
    left with no replies has no score.
    """
    results: MetricResult = {}
    single = all(talk.is_single_reply for talk in talks)
    for metric in metrics:
        if isinstance(metric, DialogueMetric) and not (single and isinstance(metric, BaseMetric)):
            talk_of = [i for i, talk in enumerate(talks) if not talk.partner_failed]
            found = metric.compute([talks[i].dialogue for i in talk_of], model, split_name)
        else:
            needs_references = getattr(metric, "needs_references", False)  # RL4LMs' classes do not say
            rows = [
                (i, reply)
                for i, talk in enumerate(talks)
                for reply in ([] if talk.partner_failed else talk.replies)
                if single or reply.references or not needs_references
            ]
            if not rows:
                _logger.warning("%s has no score: no reply of %s has references", type(metric).__name__, split_name)
                continue
            talk_of, marker = [i for i, _ in rows], getattr(metric, "append_to_texts", "")
            found = metric.compute(
                [reply.prompt for _, reply in rows],
                [reply.text + marker for _, reply in rows],
                [[text + marker for text in reply.references] for _, reply in rows],
                [reply.meta_info for _, reply in rows],
                model,
                split_name,
            )
        if twice := results.keys() & found.keys():
            _logger.warning("two metrics have the key %s: the numbers are those of the last one", min(twice))
        for key, (each, corpus) in found.items():
            results[key] = each if each is None else _by_talk(each, talk_of, len(talks)), corpus
    return results


def replies_by_turn(talks: Sequence[Talk]) -> list[list[Talk]]:
    """Return all first replies, all second ones and so on, each as a conversation of one turn."""
    heard = [talk for talk in talks if not talk.partner_failed]
    return [
        [_reply(talk, talk.replies[turn]) for talk in heard if turn < len(talk.replies)]
        for turn in range(max((len(talk.replies) for talk in heard), default=0))
    ]


def _reply(talk: Talk, reply: Reply) -> Talk:
    return Talk(reply_dialogue(talk.dialogue.id, reply.prompt, reply.text, reply.meta_info), [reply])


def _by_talk(scores: Sequence[float], talk_of: Sequence[int], n_talks: int) -> list[float]:
    """Mean score of the replies of each conversation; NaN if it has none."""
    of_talk: list[list[float]] = [[] for _ in range(n_talks)]
    for i, score in zip(talk_of, scores, strict=True):
        of_talk[i].append(score)
    return [sum(each) / len(each) if each else math.nan for each in of_talk]


def generate_texts(
    policy: LMActorCriticPolicy, prompts: list[list[int]], generation_kwargs: dict[str, Any] | None
) -> list[str]:
    """Generate one batch of replies, as text."""
    ids, mask = padded(prompts, left=True)
    obs = {"prompt_ids": ids.to(policy.device), "prompt_mask": mask.to(policy.device)}
    replies = policy.generate(obs, **(generation_kwargs or {}))
    return [policy.end_of_turn.reply_text(ids.tolist()) for ids in replies.per_row("response_ids")]


def _post_processed(reply: str, sample: Sample, post_process: Callable[[str], str]) -> str:
    try:
        text = post_process(reply)
    except Exception as error:
        raise ConfigError(
            f"post_processing_fn failed on sample {sample.id!r} (reply {reply[:80]!r}): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"post_processing_fn must return a string, not {text!r} (sample {sample.id!r})")
    return text
