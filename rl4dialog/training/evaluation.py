"""Evaluation of a policy on a split, and a summary of the changes by training.

The policy gives one reply to each prompt, or holds one conversation about each sample if the run has a partner; all
metrics score the results. The samples are divided among the processes of a run. The main process gathers everything
and computes the metrics.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import ConfigError, MetricError, PartnerError, RewardError, raised, shown
from rl4dialog.core.protocols import BaseMetric, DialogueMetric, MetricResult
from rl4dialog.core.registry import import_object
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample, reply_dialogue
from rl4dialog.data.dialogue_format import EOU_TOKEN
from rl4dialog.functional.distributed import (
    all_gather_object,
    all_reduce_max,
    is_main_process,
    n_processes,
    process_index,
)
from rl4dialog.functional.masks import padded
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.rollouts.talk import Talk, talk_of_one_reply
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.reading import conversation_record
from rl4dialog.runs.report.metrics import direction
from rl4dialog.runs.run_folder import REFERENCES_FILE
from rl4dialog.runs.summary import Example
from rl4dialog.runs.tracking import Tracker
from rl4dialog.scores.adapters import RewardMetric
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.building.policy import build_post_processor, evaluation_kwargs
from rl4dialog.training.building.rewards import RewardColumns, mean_reward
from rl4dialog.training.building.texts import Texts
from rl4dialog.training.random_state import random_states_kept

VALUES = "values"
"""Key of a record: the value of the state before each utterance of the agent."""


_logger = logging.getLogger(__name__)
Metric = BaseMetric | DialogueMetric
Measure = Callable[[Any, Sequence[Sample], Sequence[Talk]], tuple[dict[str, float], list[dict[str, Any]]]]
"""Measures a policy by its conversations about samples: metrics, and what the record of each conversation gets."""
Talking = Callable[[list[Sample], Sequence[int]], list[Talk]]
"""Talks about samples, of which it also gets the indices."""


def hold_talks(
    talk: Talking, samples: Sequence[Sample], sizes: Sequence[int], what: str, batch_size: int, seed: int
) -> list[Talk]:
    """Talk about each sample, in batches of similar size. Empty in all processes but the main one."""
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
            own |= zip(rows, talk([samples[i] for i in rows], rows), strict=True)
            progress.advance(sum(map(len, batches[first : first + n_processes()])))
    found = all_gather_object(own)
    if not is_main_process():
        return []
    by_row = dict(ChainMap(*found))
    return [by_row[row] for row in range(len(samples))]


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


def compute_metrics(metrics: Sequence[Metric], talks: Sequence[Talk], split_name: str, model: Any) -> MetricResult:
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
        checked = _checked(found, type(metric).__name__, len(talk_of))
        if twice := results.keys() & checked.keys():
            _logger.warning("two metrics have the key %s: the numbers are those of the last one", min(twice))
        for key, (each, corpus) in checked.items():
            results[key] = each if each is None else _by_talk(each, talk_of, len(talks)), corpus
    return results


def _checked(found: Any, metric: str, n: int) -> MetricResult:
    """The result of a metric for ``n`` texts or conversations, if it has the right form."""
    right = f"must return a dict, by key with a list of {n} numbers or None, and the number of the whole split"
    if not isinstance(found, Mapping):
        raise MetricError(f"metric {metric} {right}, not {shown(found)}")
    for key, pair in found.items():
        try:
            each, corpus = pair
            float(sum([*(() if each is None else each), corpus]))  # what is no number cannot be added
        except (TypeError, ValueError):
            raise MetricError(f"metric {metric} {right}, not {shown(pair)} for {key!r}") from None
        if each is not None and len(each) != n:
            raise MetricError(f"metric {metric} {right}, not a list of {len(each)} for {key!r}")
    return dict(found)


def _by_talk(scores: Sequence[float], talk_of: Sequence[int], n_talks: int) -> list[float]:
    """Mean score of the replies of each conversation; NaN if it has none."""
    of_talk: list[list[float]] = [[] for _ in range(n_talks)]
    for i, score in zip(talk_of, scores, strict=True):
        of_talk[i].append(score)
    return [sum(each) / len(each) if each else math.nan for each in of_talk]


def generate_texts(policy: LMActorCriticPolicy, prompts: list[list[int]], kwargs: dict[str, Any] | None) -> list[str]:
    """Generate one batch of replies, as text."""
    ids, mask = padded(prompts, left=True)
    obs = {"prompt_ids": ids.to(policy.device), "prompt_mask": mask.to(policy.device)}
    replies = policy.generate(obs, **(kwargs or {}))
    return [policy.end_of_turn.reply_text(ids.tolist()) for ids in replies.per_row("response_ids")]


def _post_processed(reply: str, sample: Sample, post_process: Callable[[str], str]) -> str:
    try:
        text = post_process(reply)
    except Exception as error:
        raise ConfigError(
            f"post_processing_fn failed on sample {sample.id!r} (reply {reply[:80]!r}): {raised(error)}"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"post_processing_fn must return a string, not {text!r} (sample {sample.id!r})")
    return text


RANDOM, CONSTANT = "random reference", "constant reply"
"""Names of replies that read no prompt."""
_N_CONSTANTS, _N_COMPARED = 10, 100  # constant replies that are tried, and samples on which they are


@dataclass
class Evaluation:
    """Corpus scores by metric key, and one record per sample in RL4LMs' form."""

    metrics: dict[str, float]  # corpus scores by metric key
    predictions: list[dict[str, Any]]
    reward_error: RewardError | None = None  # error message, if a reward failed and failures stop the run
    talks: Sequence[Talk] = ()  # the conversations; empty if the evaluation was loaded from a run folder


def metrics_of(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    return {split: evaluation.metrics for split, evaluation in evaluations.items()}


class Evaluator:
    """Evaluates splits with a run's settings, and records the results."""

    def __init__(
        self,
        config: TextConfig,
        texts: Texts,
        metrics: Sequence[Metric],
        tracker: Tracker | None,
        rewards: RewardColumns | None = None,
        conversing: Conversing | None = None,
    ) -> None:
        self._masks_partners = config.env is not None and config.env.args.partner_on_error == "mask"
        self._settings, self._seed = config.train_evaluation, config.seed
        self._texts, self._metrics, self._tracker = texts, metrics, tracker
        self._of_dialogues = [metric for metric in metrics if isinstance(metric, DialogueMetric)]
        self._of_replies = [metric for metric in metrics if not isinstance(metric, DialogueMetric)]
        self._rewards, self._conversing = rewards, conversing
        self._kwargs = evaluation_kwargs(config)
        self._post_process = build_post_processor(config.evaluation_block)
        self._measure: Measure | None = import_object(config.measure)(config, texts.lengths) if config.measure else None
        self.value_ranks: Callable[[Sequence[Sample]], dict[str, float]] | None = None
        self._gathered_model: Any = None  # if the policy is sharded
        self.has_critic = False  # whether values of the policy are recorded with its conversations of the test split

    def begin_run(self, policy: LMActorCriticPolicy) -> None:
        """Prepare the partner of conversations, before a policy is trained or its weights are restored."""
        if self._conversing is not None:
            self._conversing.begin_run(policy)

    def samples(self, split: str) -> list[Sample]:
        return self._texts.data.samples(split, self._settings.max_eval_samples)

    def _gather_model(self, policy: LMActorCriticPolicy) -> None:
        """Gather all weights of a sharded model, if metrics say that they read it. All processes must call this."""
        is_used = any(getattr(metric, "uses_model", False) for metric in self._metrics)  # only of the main process
        if policy.sharded and all_reduce_max(is_used):
            self._gathered_model = policy.whole_model()

    def _model(self, policy: LMActorCriticPolicy) -> Any:
        return self._gathered_model if policy.sharded else policy.language_model

    def run(self, policy: LMActorCriticPolicy, split: str, epoch: int, reward_must_work: bool = False) -> Evaluation:
        """Evaluate a policy after ``epoch`` iterations. Empty in all processes but the main one."""
        with random_states_kept():  # so the number of evaluations does not affect training
            result = self._judged(policy, split, reward_must_work)
        if self.value_ranks is not None and result.talks:
            result.metrics |= self.value_ranks(self.samples(split))
        result.reward_error = self._rewards.error if self._rewards is not None else None
        if self._measure is not None and result.talks and not policy.sharded:
            measured, records = self._measure(policy, self.samples(split), result.talks)
            result.metrics |= measured
            for prediction, record in zip(result.predictions, records, strict=True):
                prediction |= record
        if self._tracker is not None:
            if epoch == 0 and split == "test" and (players := self.players(policy, split)):
                self._tracker.log_players(players)
            self._tracker.log_metrics(epoch, split, result.metrics)
            self._tracker.log_predictions(epoch, split, result.predictions)
        self._gathered_model = None
        return result

    def _judged(self, policy: LMActorCriticPolicy, split: str, must_work: bool) -> Evaluation:
        # The seed is the same for every evaluation, so that differences come from the policy.
        samples, seed = self.samples(split), derive_seed(self._seed, "evaluation", split)
        talk: Talking
        if self._conversing is not None:
            talk, sizes = functools.partial(self._converse, policy, seed), [0] * len(samples)
            if self.has_critic and split == "test" and not policy.sharded:  # for the report
                talk = functools.partial(talk, values_of=policy.predict_sequence_values)
        else:
            prompts = self._prompts(policy, samples)
            talk, sizes = functools.partial(self._reply, policy, prompts), [len(ids) for ids in prompts]
        talks = hold_talks(talk, samples, sizes, split, self._settings.eval_batch_size, seed)
        self._gather_model(policy)
        if not talks:
            return Evaluation({}, [])
        columns = self._columns(samples, talks, must_work)
        return judged(talks, samples, self._metrics, split, self._model(policy), columns)

    def _reply(
        self, policy: LMActorCriticPolicy, prompts: list[list[int]], samples: list[Sample], rows: Sequence[int]
    ) -> list[Talk]:
        replies = generate_texts(policy, [prompts[row] for row in rows], self._kwargs)
        if (process := self._post_process) is not None:
            replies = [_post_processed(reply, sample, process) for reply, sample in zip(replies, samples, strict=True)]
        return [talk_of_one_reply(sample, reply) for sample, reply in zip(samples, replies, strict=True)]

    def _converse(
        self, policy: LMActorCriticPolicy, seed: int, samples: list[Sample], rows: Sequence[int], **settings: Any
    ) -> list[Talk]:
        """Hold one conversation about each sample; the seed of the partner depends on the sample's index."""
        assert self._conversing is not None
        seeds = [derive_seed(seed, "partner", row) for row in rows]
        return self._conversing(policy, samples, seeds, **self._kwargs, **settings)

    def _columns(self, samples: Sequence[Sample], talks: Sequence[Talk], must_work: bool) -> dict[str, list[float]]:
        failures, n_talks = [talk.error for talk in talks if talk.partner_failed and talk.error is not None], len(talks)
        if failures and not self._masks_partners:
            raise PartnerError(failures[0])
        if len(failures) == n_talks:
            raise PartnerError(f"the partner failed in all {n_talks} conversations of this evaluation: {failures[0]}")
        if n := len(failures):
            _logger.warning("the partner failed in %d of the %d conversations of this evaluation", n, n_talks)
        if self._rewards is None:
            return {}
        if self._conversing is not None:
            return self._rewards.of_conversations(talks, must_work)
        return self._rewards.score(samples, [talk.replies[0].text for talk in talks], must_work)

    def _prompts(self, policy: LMActorCriticPolicy, samples: Sequence[Sample]) -> list[list[int]]:
        lengths = self._texts.lengths
        limits = lengths.prompt, lengths.truncation_side, lengths.turn_end
        return [encode_prompt(policy.end_of_turn.tokenizer, s.prompt_or_input_text, *limits) for s in samples]

    def ceiling(self, policy: LMActorCriticPolicy, split: str) -> dict[str, float]:
        """Metrics of a split's reference replies, if there are any; in conversations, only those of single replies."""
        samples = self.samples(split)
        references = [sample.references[0] if sample.references else "" for sample in samples]
        if not any(references):
            return {}
        talks = [talk_of_one_reply(sample, text) for sample, text in zip(samples, references, strict=True)]
        metrics = self._of_replies if self._conversing is not None else self._metrics
        rewards = self._rewards if self._conversing is None else None
        columns = rewards.score(samples, references) if rewards is not None else {}
        return _of_all(compute_metrics(metrics, talks, split, self._model(policy)), columns)

    def players(self, policy: LMActorCriticPolicy, split: str) -> dict[str, dict[str, float]]:
        """Metrics of scripted players, or of replies that read no prompt (:func:`trivial_scores`), by name."""
        players, end = self._texts.data.pools[split].players, policy.end_of_turn
        if self._conversing is None:
            known = self._texts.data.samples("train") if "train" in self._texts.data.pools else []
            model = self._model(policy)
            with random_states_kept():
                trivial, _ = trivial_scores(self._of_replies, self.samples(split), known, self._seed, model)
            return trivial
        if end.tokenizer.eos_token_id not in end.eos_token_ids or self._conversing.in_lockstep:
            return {}
        samples, seed = self.samples(split), derive_seed(self._seed, "evaluation", split)
        size, found = self._settings.eval_batch_size, {}
        with random_states_kept():
            for name, player in players.items():
                talks: list[Talk] = []
                for start in range(0, len(samples), size):
                    chosen = samples[start : start + size]
                    rows = range(start, start + len(chosen))
                    talks += self._converse(policy, seed, chosen, rows, players=[player() for _ in chosen])
                columns = self._columns(samples, talks, must_work=False)
                scores = compute_metrics(self._of_dialogues, talks, split, self._model(policy))
                found[name] = _of_all(scores, columns)
        return found

    def by_turn(self, result: Evaluation, policy: LMActorCriticPolicy, split: str) -> list[dict[str, float]]:
        """``n_replies`` and the metrics of single replies by turn: of all first replies, then of all second ones."""
        measured, heard = [], [talk for talk in result.talks if not talk.partner_failed]
        for turn in range(max((len(talk.replies) for talk in heard), default=0)):
            said = [(talk.dialogue.id, talk.replies[turn]) for talk in heard if turn < len(talk.replies)]
            replies = [Talk(reply_dialogue(id, each.prompt, each.text, each.meta_info), [each]) for id, each in said]
            scores = compute_metrics(self._of_replies, replies, split, self._model(policy))
            measured.append({"n_replies": len(replies), **_of_all(scores, {})})
        return measured

    def measure_references(self, policy: LMActorCriticPolicy) -> None:
        """Record the test metrics of the reference replies, if there are any."""
        self._gather_model(policy)
        if self._tracker is not None:
            self._tracker.run_folder.write_json(REFERENCES_FILE, self.ceiling(policy, "test"))
        self._gathered_model = None

    def changed_replies(self, before: Evaluation, after: Evaluation, n: int = 3) -> list[Example]:
        """Evenly spaced dialogues of the test split whose reply has changed, each once; none of conversations."""
        if self._conversing is not None:
            return []
        replies = ([each["generated_text"] for each in found.predictions] for found in (before, after))
        rows = zip(*replies, self.samples("test"), strict=True)
        changed = [Example(_utterances(s), a, b, next(iter(s.references), "")) for a, b, s in rows if a != b]
        different = [*{tuple(each.utterances): each for each in reversed(changed)}.values()][::-1]
        return different[:: max(1, len(different) // n)][:n]


def trivial_scores(
    metrics: Sequence[Metric], samples: Sequence[Sample], known: Sequence[Sample], seed: int, model: Any = None
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Scores of replies that read no prompt, by the metrics that compare with references: what a model has to beat.

    A random reference is that of another sample. The constant reply is, for each metric, the one of the most frequent
    references of ``known`` that scores best on some of these, by the metric's first number.

    Returns:
        The scores by name of the replies and key, and the constant replies by key. Empty without such metrics (those
        of rewards are left out, which can be slow or cost money), or without references.
    """
    of_replies = [each for each in metrics if not isinstance(each, DialogueMetric | RewardMetric)]
    chosen = [each for each in of_replies if getattr(each, "needs_references", False)]
    samples, known = ([each for each in found if any(each.references)] for found in (samples, known))
    if not chosen or len(samples) < 2 or not known:
        return {}, {}
    order = np.random.default_rng(derive_seed(seed, "trivial")).permutation(len(samples))
    of_other = {int(i): samples[int(j)].references[0] for i, j in zip(order, np.roll(order, 1), strict=True)}
    common = [text for text, _ in Counter(each.references[0] for each in known).most_common(_N_CONSTANTS)]
    some = known[:: max(1, len(known) // _N_COMPARED)][:_N_COMPARED]
    found, texts = {RANDOM: dict[str, float](), CONSTANT: dict[str, float]()}, dict[str, str]()

    def scores(metric: BaseMetric, of: Sequence[Sample], replies: Sequence[str]) -> dict[str, float]:
        talks = [talk_of_one_reply(sample, reply) for sample, reply in zip(of, replies, strict=True)]
        return _of_all(compute_metrics([metric], talks, "test", model), {})

    def quality(metric: BaseMetric, text: str) -> float:
        key, value = next(iter(scores(metric, some, [text] * len(some)).items()))
        return -value if direction(key) == "lower" else value

    for metric in chosen:
        constant = max(common, key=functools.partial(quality, metric))
        found[RANDOM] |= scores(metric, samples, [of_other[i] for i in range(len(samples))])
        of_constant = scores(metric, samples, [constant] * len(samples))
        found[CONSTANT] |= of_constant
        texts |= dict.fromkeys(of_constant, constant)
    return found, texts


def judged(
    talks: Sequence[Talk],
    samples: Sequence[Sample],
    metrics: Sequence[Metric],
    split_name: str,
    model: Any,
    columns: Mapping[str, list[float]],
) -> Evaluation:
    """Compute all metrics, and make the records of the predictions."""
    scores = compute_metrics(metrics, talks, split_name, model)
    predictions: list[dict[str, Any]] = []
    for i, (sample, talk) in enumerate(zip(samples, talks, strict=True)):
        prompt, reply = sample.prompt_or_input_text, ""
        if talk.replies:
            prompt, reply = talk.replies[0].prompt, talk.replies[0].text
        references = "".join(f"<START-{n}>{text}<END-{n}>" for n, text in enumerate(sample.references, start=1))
        record: dict[str, Any] = {"split_name": split_name, "sample_id": sample.id, "prompt_text": prompt}
        record |= {**_history(sample), "generated_text": reply, "ref_text": references}
        record |= {} if talk.is_single_reply else conversation_record(talk.dialogue) | values_before(talk)
        record |= {key: values[i] for key, values in columns.items()}
        record |= {key: "n/a" if each is None else each[i] for key, (each, _) in scores.items()}
        predictions.append(record)
    return Evaluation(_of_all(scores, columns) | _by_partner(scores, talks), predictions, talks=talks)


def _of_all(scores: MetricResult, columns: Mapping[str, list[float]]) -> dict[str, float]:
    """Mean reward, if there is one, and the corpus scores of the metrics."""
    return mean_reward(columns) | {key: corpus for key, (_, corpus) in scores.items()}


def _by_partner(scores: MetricResult, talks: Sequence[Talk]) -> dict[str, float]:
    """Means over the conversations with each of several partners, as ``<key>/<name of the partner>``."""
    found, partners = dict[str, float](), sorted({talk.dialogue.partner for talk in talks} - {""})
    for key, (each, _) in scores.items():
        if each is None:
            continue
        for partner in partners:
            own = [value for value, talk in zip(each, talks, strict=True) if talk.dialogue.partner == partner]
            if known := [value for value in own if not math.isnan(value)]:
                found[f"{key}/{partner}"] = sum(known) / len(known)
    return found


def _history(sample: Sample) -> dict[str, list[str]]:
    """The utterances of a prompt with the markup of a chat template, for records; nothing for other prompts."""
    said = (sample.meta_data or {}).get("history")
    return {} if said is None or EOU_TOKEN in sample.prompt_or_input_text else {"history": list(said)}


def _utterances(sample: Sample) -> Sequence[str]:
    """The utterances of a prompt, without markup."""
    return _history(sample).get("history") or sample.prompt_or_input_text.split(EOU_TOKEN)
