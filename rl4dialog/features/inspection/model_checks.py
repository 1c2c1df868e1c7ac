"""Checks of memory, disk, rewards and metrics, and that sampler, trainer and reference compute the same."""

from __future__ import annotations

import math
import shutil

import numpy as np
import torch
from torch import Tensor, nn

from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.process_memory import available_mib, resident_mib
from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.features.inspection.subject import Subject
from rl4dialog.features.inspection.watch import BEST_ADVICE, FIRST_KL_TOLERANCE, already_best
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import weights_hash
from rl4dialog.rollouts.talk import talk_of_one_reply
from rl4dialog.runs.summary import format_number, is_headline
from rl4dialog.training.evaluation import CONSTANT, RANDOM, compute_metrics, trivial_scores
from rl4dialog.training.findings import Finding, NotApplicable, judged
from rl4dialog.training.memory import LESS_MEMORY, MEMORY_SHARE, MIB, trains_on_gpu
from rl4dialog.training.supervised import memorised

# Largest allowed difference between two log-probabilities of one token. Float32 kernels differ by 1e-5. Bfloat16 rounds
# logits of 32 to 1/8, in each of the two passes.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.25}

# Largest allowed mean log ratio between vLLM's sampler and the trainer, in nats per token. Their kernels differ.
ENGINE_KL = 0.02

ROWS_PER_PASS = 8
N_METRIC_SAMPLES, N_TRIVIAL_SAMPLES = 4, 500


def memory(subject: Subject) -> Finding:
    """Compare predicted peak memory with available memory."""
    needed = subject.memory_plan.total / MIB
    if trains_on_gpu(subject.config.alg.args):
        there, where = (torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) / MIB, "on the GPU"
    else:
        there, where = available_mib() + resident_mib(), "in main memory"
    how_well = "about" if subject.memory_plan.activations is not None else "more than"
    measured = f"{how_well} {needed:,.0f} MiB needed, {there:,.0f} MiB available {where}"
    return judged(needed / there, measured, LESS_MEMORY, warn_above=MEMORY_SHARE, fail_above=1.0)


def disk(subject: Subject) -> Finding:
    """Compare the size of the run's checkpoints and models with free disk space."""
    plan, settings = subject.memory_plan, subject.config.train_evaluation
    n_checkpoints = 1  # after the last iteration
    if settings.save_every is not None or settings.keep_best is not None:
        # The most recent ones, the best one, and one being written.
        n_checkpoints = settings.keep_last + (settings.keep_best is not None) + 1
    has_best_model = any(callback.id == "save_best_model" for callback in subject.config.callbacks)
    n_models = 4 if has_best_model else 2  # best_model/ is written before the old one is removed
    needed = (n_checkpoints * (plan.weights + plan.optimizer) + n_models * plan.weights) / MIB
    path = subject.results_path.expanduser().absolute()
    folder = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(folder).free / MIB
    checkpoints = "1 checkpoint" if n_checkpoints == 1 else f"{n_checkpoints} checkpoints"
    kept = f"{checkpoints}, best_model/ and the model" if has_best_model else f"{checkpoints} and the model"
    measured = f"up to {needed:,.0f} MiB for {kept}, {free:,.0f} MiB free in {folder}"
    advice = "lower train_evaluation.keep_last, or choose another --base_path_to_store_results"
    return judged(needed / free if free else 2.0, measured, advice, warn_above=MEMORY_SHARE, fail_above=1.0)


def warm_start(subject: Subject) -> Finding:
    """Check that a cached warm start did not memorise its data."""
    if subject.config.warm_start is None:
        raise NotApplicable("there is no warm start")
    losses = subject.warm_start_losses
    if not losses:
        raise NotApplicable("the warm start is not cached, or its loss on val replies is not known")
    if problem := memorised(losses):
        return Finding("warn", *problem.split("; "))
    return Finding("pass", f"from {losses[0]:.3g} to {losses[-1]:.3g} nats per token of val replies")


def dropout_off(subject: Subject) -> Finding:
    """Check that two passes agree, even after the policy was set to training mode."""
    policy, replies = subject.algorithm.policy, subject.replies
    policy.set_training_mode(True)
    difference = _largest(_log_probs(policy, replies) - _log_probs(policy, replies))
    n_active = sum(isinstance(module, nn.Dropout) and module.training and module.p > 0 for module in policy.modules())
    measured = f"two passes differ by {difference:.1e}; {n_active} dropout layers are active"
    advice = "set dropout to 0 in the model's config; it makes the ratio of new to old probabilities noisy"
    return _within_tolerance(subject, difference if not n_active else math.inf, measured, advice)


def padding_invariance(subject: Subject) -> Finding:
    """Check that padding does not change the results of the sampler or of the training pass."""
    policy, replies = subject.algorithm.policy, subject.replies
    rows = torch.arange(min(ROWS_PER_PASS, len(replies)), device=policy.device)
    padded = Replies.from_observations({name: tensor[rows] for name, tensor in replies.observations.items()})
    together, in_training = policy.sequence_log_probs(padded), 0.0
    for row in rows:
        alone = replies[row[None]]
        difference = together[row, : alone.response_mask.shape[1]] - policy.sequence_log_probs(alone)[0]
        in_training = max(in_training, _largest(difference))
    in_sampling = 0.0 if policy.backend is not None else _sampler_difference(policy, padded)
    measured = f"log-probabilities change by {in_sampling:.1e} in sampling, and {in_training:.1e} in training"
    advice = "the model numbers its positions by column, or attends to padding; it must follow its attention mask"
    return _within_tolerance(subject, max(in_sampling, in_training), measured, advice)


def sampler_agreement(subject: Subject) -> Finding:
    """Check that the sampler and the training pass agree on a sampled token's log-probability."""
    policy, replies = subject.algorithm.policy, subject.replies
    if policy.backend is not None and replies.sampler_log_probs is not None:
        gap = float((replies.flat("sampler_log_probs") - replies.flat("log_probs")).mean())
        measured = f"vLLM's sampler differs from the trainer by {gap:.4f} nats per token"
        advice = "compare vLLM's dtype with precision; ratios use the trainer's log-probabilities in any case"
        return judged(0.0 if policy.settings.truncates else abs(gap), measured, advice, warn_above=ENGINE_KL)
    difference = _largest(_log_probs(policy, replies) - replies.flat("log_probs"))
    measured = f"log-probabilities of sampled tokens differ by {difference:.1e} from those of training"
    advice = "decoding with a cache must agree with a full pass: check the model's positions, masks and dropout"
    return _within_tolerance(subject, difference, measured, advice)


def kl_at_start(subject: Subject) -> Finding:
    """Check that the initial policy equals its reference."""
    policy, replies = subject.algorithm.policy, subject.replies
    if not policy.has_reference:
        raise NotApplicable("there is no reference (alg.policy.args.reference: none)")
    reference = [policy.reference_log_probs(part)[part.response_mask] for part in replies.split(ROWS_PER_PASS)]
    gaps = replies.flat("unmasked_log_probs") - torch.cat(reference)
    measured = f"KL {float(gaps.mean()):.1e} nats per token, largest difference of a token {_largest(gaps):.1e}"
    advice = "policy and reference must be equal at the start: check for nonzero adapters, and see sampler_agreement"
    return _within_tolerance(subject, _largest(gaps), measured, advice)


def learning_rate_zero(subject: Subject) -> Finding:
    """Check that training with learning rate 0 keeps the ratio at 1 and all weights unchanged."""
    algorithm = subject.algorithm
    if isinstance(algorithm, TRPO):
        raise NotApplicable("TRPO's steps do not depend on the learning rate")
    assert len(subject.rollout.replies)
    policy = algorithm.policy
    trained = nn.ParameterList([*policy.actor_parameters(), *policy.critic_parameters()])
    before = weights_hash(trained)
    algorithm.train()
    changed, logged = weights_hash(trained) != before, algorithm.logger.name_to_value
    approx_kl, skipped = abs(logged.get("train/approx_kl", 0.0)), logged.get("train/skipped_steps", 0)
    ratio = f"ratio differs from 1 by {math.sqrt(2 * approx_kl):.1e}, " if "train/approx_kl" in logged else ""
    measured = f"{ratio}weights {'changed' if changed else 'unchanged'}, {skipped:.0f} steps with a non-finite gradient"
    advice = "an update must start from the policy that sampled: see failed checks above, the optimizer and the reward"
    level = math.inf if changed or skipped else approx_kl
    return judged(level, measured, advice, fail_above=FIRST_KL_TOLERANCE[subject.config.precision])


def determinism(subject: Subject) -> Finding:
    """Check that two rollouts with the same seed are identical."""
    first, second = subject.rollout, subject.collect()
    ids = [[row.tolist() for row in each.replies.per_reply("response_ids")] for each in (first, second)]
    if ids[0] != ids[1]:
        n = sum(a != b for a, b in zip(*ids, strict=False))
        advice = "runs cannot be repeated: something draws without the run's seed, or a kernel is not deterministic"
        return Finding("warn", f"{n} of {len(ids[0])} replies differ although the seed is the same", advice)
    if first.rewards != second.rewards:
        return Finding("warn", "the same replies earned different rewards", "seed the reward, or expect noisy rewards")
    return Finding("pass", f"{len(ids[0])} replies and their rewards were the same twice")


def _within_tolerance(subject: Subject, difference: float, measured: str, advice: str) -> Finding:
    return judged(difference, measured, advice, fail_above=TOLERANCE[subject.config.precision])


def _largest(differences: Tensor) -> float:
    return float(differences.abs().max())


def _log_probs(policy: LMActorCriticPolicy, replies: Replies) -> Tensor:
    """Log-probabilities of all agent tokens, row by row, from the training pass. Shape (N,)."""
    # A few rows at a time, because logits are large.
    parts = replies.split(ROWS_PER_PASS)
    return torch.cat([policy.sequence_log_probs(part)[part.response_mask] for part in parts])


def _sampler_difference(policy: LMActorCriticPolicy, batch: Replies) -> float:
    """Change of the most likely first token's log-probability when its prompt is padded."""
    greedy = {"do_sample": False, "temperature": policy.settings.temperature, "max_new_tokens": 1}
    together = policy.generate(batch.observations, **greedy)
    together_first, largest = together.flat("log_probs"), 0.0
    for row in range(len(batch)):
        alone = policy.generate(batch[torch.tensor([row])].observations, **greedy)
        largest = max(largest, _largest(together_first[row] - alone.flat("log_probs")))
    return largest


def reward(subject: Subject) -> Finding:
    """Check that rewards are finite and not constant, and measure their duration."""
    rollout = subject.rollout
    earned = np.array(rollout.rewards)
    seconds = rollout.logged["time/score_s"] / len(earned)
    spread = f"standard deviation {earned.std():.3g}, from {earned.min():.3g} to {earned.max():.3g}"
    measured = f"{len(earned)} replies earned {earned.mean():.3g} ({spread}), {1000 * seconds:.1f} ms each"
    if n_failed := int(rollout.logged["rollout/masked_rewards"]):
        advice = "set reward_fn.on_error: raise to see the error"
        return Finding("warn", f"the reward failed for {n_failed} replies; {measured}", advice)
    advice = "nothing can be learned from a constant reward: check that it depends on the reply"
    if subject.is_cold:
        advice += ". The warm start may change this; `rl4dialog prepare` runs it in advance"
    if earned.std() >= 1e-9 and (best := already_best(rollout.rewards)):
        return Finding("warn", f"{best}; {measured}", BEST_ADVICE)
    return judged(-float(earned.std()), measured, advice, warn_above=-1e-9)


def metrics(subject: Subject) -> Finding:
    """Check that every metric of replies returns finite scores for a few reference replies."""
    model, found = subject.initial_model, subject.metrics  # the model first, because a quick examination ends here
    of_replies = [each for each in found if isinstance(each, BaseMetric) or not isinstance(each, DialogueMetric)]
    if found and not of_replies:
        raise NotApplicable("the metrics measure whole conversations, of which there are no references")
    samples = subject.data.samples("test", N_METRIC_SAMPLES)
    replies = [sample.references[0] if sample.references else "" for sample in samples]
    talks = [talk_of_one_reply(sample, reply) for sample, reply in zip(samples, replies, strict=True)]
    scores = compute_metrics(of_replies, talks, "test", model)
    measured = f"{len(scores)} scores of {len(samples)} reference replies"
    if broken := [key for key, (_, corpus) in scores.items() if not math.isfinite(corpus)]:
        return Finding("warn", f"{measured}, of which {', '.join(broken)} are not finite", "check the references")
    return Finding("pass", measured)


def trivial_replies(subject: Subject) -> Finding:
    """Measure replies that read no prompt, with the metrics that compare with references: what a model has to beat."""
    model, found = subject.initial_model, subject.metrics
    samples, known = subject.data.samples("test", N_TRIVIAL_SAMPLES), subject.data.samples("train")
    scores, texts = trivial_scores(found, samples, known, subject.config.seed, model)
    keys = [key for key in texts if is_headline(key)]
    if not keys:
        raise NotApplicable("no metric compares with references, or there are none")
    random = ", ".join(f"{key} {format_number(scores[RANDOM][key])}" for key in keys)
    constant = ", ".join(f"{key} {format_number(scores[CONSTANT][key])} ({texts[key]!r})" for key in keys)
    said = f"the reference of another one: {random}; one for all: {constant}"
    return Finding("pass", f"of {len(samples)} test samples, {said}")
