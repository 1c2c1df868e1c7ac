"""Checks that sampler, trainer and reference compute the same numbers for the user's model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.training.doctor.finding import Finding, NotApplicable, judged
from rl4dialog.training.doctor.subject import Subject
from rl4dialog.training.supervised.fine_tuning import memorised
from rl4dialog.training.watch.divergence import FIRST_KL_TOLERANCE

# Largest allowed difference between two log-probabilities of one token. Float32 kernels differ by 1e-5. Bfloat16 rounds
# logits of 32 to 1/8, in each of the two passes.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.25}

# Largest allowed mean log ratio between vLLM's sampler and the trainer, in nats per token. Their kernels differ.
ENGINE_KL = 0.02

ROWS_PER_PASS = 8


def weights(subject: Subject) -> Finding:
    """Check that all weights are finite."""
    broken = [name for name, weight in subject.model.named_parameters() if not torch.isfinite(weight).all()]
    if broken:
        return Finding("fail", f"{len(broken)} tensors with NaN or infinity, such as {broken[0]}", "load another model")
    n = sum(weight.numel() for weight in subject.model.parameters())
    return Finding("pass", f"{n:,} parameters, all finite (the model {subject.model_state})")


def warm_start(subject: Subject) -> Finding:
    """Check that the loss of val replies did not rise during the warm start."""
    if subject.config.warm_start is None:
        raise NotApplicable("there is no warm start")
    losses = subject.warm_start_losses
    if not losses:
        raise NotApplicable("the warm start is not cached, or its loss on val replies is not known")
    measured = f"nats per token of val replies, before and after each epoch: {', '.join(f'{x:.3g}' for x in losses)}"
    if problem := memorised(losses):
        return Finding("warn", f"{problem} ({measured})", "lower warm_start.n_epochs or warm_start.learning_rate")
    return Finding("pass", measured)


def dropout_off(subject: Subject) -> Finding:
    """Check that two passes agree, even after the policy was set to training mode."""
    policy, replies = subject.algorithm.policy, subject.replies
    policy.set_training_mode(True)
    difference = _largest(_log_probs(policy, replies) - _log_probs(policy, replies))
    n_active = sum(isinstance(module, nn.Dropout) and module.training and module.p > 0 for module in policy.modules())
    measured = f"two passes differ by {difference:.1e}; {n_active} dropout layers are active"
    advice = "set dropout to 0 in the model's config; it makes the ratio of new to old probabilities noisy"
    return judged(difference if not n_active else math.inf, measured, advice, fail_above=_tolerance(subject))


def padding_invariance(subject: Subject) -> Finding:
    """Check that padding does not change the results of the sampler or of the training pass."""
    policy, replies = subject.algorithm.policy, subject.replies
    rows = torch.arange(min(ROWS_PER_PASS, len(replies)), device=policy.device)
    padded = Replies.from_observations({name: tensor[rows] for name, tensor in replies.observations.items()})
    in_training = 0.0
    together = policy.sequence_log_probs(padded)
    for row in rows:
        alone = replies[row[None]]
        n = alone.response_mask.shape[1]
        difference = together[row, :n] - policy.sequence_log_probs(alone)[0]
        in_training = max(in_training, _largest(difference))
    in_sampling = 0.0 if policy.backend is not None else _sampler_difference(policy, padded)
    measured = f"log-probabilities change by {in_sampling:.1e} in sampling, and {in_training:.1e} in training"
    advice = "the model numbers its positions by column, or attends to padding; it must follow its attention mask"
    return judged(max(in_sampling, in_training), measured, advice, fail_above=_tolerance(subject))


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
    return judged(difference, measured, advice, fail_above=_tolerance(subject))


def kl_at_start(subject: Subject) -> Finding:
    """Check that the initial policy equals its reference."""
    policy, replies = subject.algorithm.policy, subject.replies
    if not policy.has_reference:
        raise NotApplicable("there is no reference (alg.policy.args.reference: none)")
    reference = [policy.reference_log_probs(part)[part.response_mask] for part in replies.split(ROWS_PER_PASS)]
    gaps = replies.flat("unmasked_log_probs") - torch.cat(reference)
    measured = f"KL {float(gaps.mean()):.1e} nats per token, largest difference of a token {_largest(gaps):.1e}"
    advice = "policy and reference must be equal at the start: check for nonzero adapters, and see sampler_agreement"
    return judged(_largest(gaps), measured, advice, fail_above=_tolerance(subject))


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
    changed = weights_hash(trained) != before
    logged = algorithm.logger.name_to_value
    approx_kl = abs(logged.get("train/approx_kl", 0.0))
    skipped = logged.get("train/skipped_steps", 0)
    ratio = f"ratio differs from 1 by {math.sqrt(2 * approx_kl):.1e}, " if "train/approx_kl" in logged else ""
    measured = f"{ratio}weights {'changed' if changed else 'unchanged'}, {skipped:.0f} steps with a non-finite gradient"
    advice = "an update must start from the policy that sampled: see failed checks above, the optimizer and the reward"
    level = math.inf if changed or skipped else approx_kl
    return judged(level, measured, advice, fail_above=FIRST_KL_TOLERANCE[subject.config.precision])


def determinism(subject: Subject) -> Finding:
    """Check that two rollouts with the same seed are identical."""
    first, second = subject.rollout, subject.collect()
    both = (each.replies for each in (first, second))
    ids = [[row.tolist() for row in replies.per_reply("response_ids")] for replies in both]
    if ids[0] != ids[1]:
        n = sum(a != b for a, b in zip(*ids, strict=False))
        advice = "runs cannot be repeated: something draws without the run's seed, or a kernel is not deterministic"
        return Finding("warn", f"{n} of {len(ids[0])} replies differ although the seed is the same", advice)
    if first.rewards != second.rewards:
        return Finding("warn", "the same replies earned different rewards", "seed the reward, or expect noisy rewards")
    return Finding("pass", f"{len(ids[0])} replies and their rewards were the same twice")


def _tolerance(subject: Subject) -> float:
    return TOLERANCE[subject.config.precision]


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
