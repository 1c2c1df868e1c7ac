"""Talks of an evaluation: a reply to each prompt, or a conversation about each sample, and the metrics of both."""

from __future__ import annotations

import logging
import math
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BaseMetric, DialogueMetric, MetricResult
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample, reply_dialogue
from rl4dialog.functional.distributed import all_gather_object, is_main_process, n_processes, process_index
from rl4dialog.functional.masks import padded
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.conversing import Conversing, Talk, talk_of_one_reply
from rl4dialog.runs.progress import Progress

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
    """Let a policy talk about each sample. Changes the random state.

    Args:
        policy: The policy that speaks.
        samples: The samples.
        sizes: Lengths of their prompts; those of similar length share a batch, to reduce padding.
        talk: Called with the policy, samples, their indices, and the generation settings.
        what: Name of the samples in the progress bar.
        batch_size: Samples per batch.
        generation_kwargs: Generation settings; ``None`` uses those of the rollouts.
        seed: Sampling seed. It is the same for every evaluation, so that differences come from the policy.

    Returns:
        One conversation per sample, in order; none in all processes but the main one.
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
    """Give one reply to each sample's prompt."""
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
                (i, j)
                for i, talk in enumerate(talks)
                for j in range(0 if talk.partner_failed else len(talk.replies))
                if single or talk.references[j] or not needs_references
            ]
            if not rows:
                _logger.warning("%s has no score: no reply of %s has references", type(metric).__name__, split_name)
                continue
            talk_of = [i for i, _ in rows]
            found = metric.compute(
                [talks[i].prompts[j] for i, j in rows],
                [talks[i].replies[j] for i, j in rows],
                [talks[i].references[j] for i, j in rows],
                [talks[i].meta_infos[j] for i, j in rows],
                model,
                split_name,
            )
        for key, (each, corpus) in found.items():
            results[key] = each if each is None else _by_talk(each, talk_of, len(talks)), corpus
    return results


def replies_by_turn(talks: Sequence[Talk]) -> list[list[Talk]]:
    """Return all first replies, all second ones and so on, each as a conversation of one turn."""
    heard = [talk for talk in talks if not talk.partner_failed]
    return [
        [_reply(talk, turn) for talk in heard if turn < len(talk.replies)]
        for turn in range(max((len(talk.replies) for talk in heard), default=0))
    ]


def _reply(talk: Talk, turn: int) -> Talk:
    prompt, reply, info = talk.prompts[turn], talk.replies[turn], talk.meta_infos[turn]
    dialogue = reply_dialogue(talk.dialogue.id, prompt, reply, info)
    return Talk(dialogue, [prompt], [reply], [talk.references[turn]], [info])


def _by_talk(scores: Sequence[float], talk_of: Sequence[int], n_talks: int) -> list[float]:
    """Mean score of the replies of each conversation; NaN if it has none."""
    of_talk: list[list[float]] = [[] for _ in range(n_talks)]
    for i, score in zip(talk_of, scores, strict=True):
        of_talk[i].append(score)
    return [sum(each) / len(each) if each else math.nan for each in of_talk]


def generate_texts(
    policy: LMActorCriticPolicy, prompts: list[list[int]], generation_kwargs: dict[str, Any] | None
) -> list[str]:
    """Generate one batch of replies, as text.

    Args:
        policy: The policy that generates the replies.
        prompts: Token ids of each prompt.
        generation_kwargs: Generation settings; ``None`` uses the policy's own.
    """
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
