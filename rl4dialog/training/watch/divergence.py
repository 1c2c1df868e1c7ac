"""Checks of the divergence between policy, reference and sampler."""

from __future__ import annotations

import math

import numpy as np

from rl4dialog.training.watch.check import History, RunFacts, check, mean

# A sampled KL can be negative by chance in one iteration, but rarely by three standard errors in the mean of five.
NEGATIVE_KL_ITERATIONS = 5
NEGATIVE_KL_ERRORS = 3.0
# RL4LMs' top_k of 20 led to -0.02 for a while in a PersonaChat run that went well.
NEGATIVE_KL_NATS = 0.03

# Controllers overshoot, by less than a factor of two in our runs.
EXPLODING_KL_TIMES_TARGET = 5.0
# Without a target: on average, the reference gives a token a seventh of its probability under the policy.
EXPLODING_KL_NATS = 2.0
EXPLODING_KL_ITERATIONS = 2

# The adaptive controller changes by at most 2 % per iteration, so this takes 120 iterations in one direction.
COEFFICIENT_FACTOR = 10.0

# Half the mean square of the log ratios. Float32: ratios off by 0.4 %, where kernels differ by at most 1e-5. Bfloat16:
# 10 %, with logits rounded to 1/256. The trainer also scores vLLM's replies, so the same limits apply.
FIRST_KL_TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}

# RL4LMs' top_k of 20 cuts off up to 0.32 in our DailyDialog runs, which learn.
TRUNCATED_MASS = 0.35
# Filters that only reweight tokens, such as repetition_penalty, cut off nothing, and vLLM reports no mass. Cutting off
# 0.35 everywhere is a KL of 0.43.
SAMPLER_KL = 0.43
TRUNCATED_ITERATIONS = 3


@check(
    "Replies are not sampled from the distribution used to compute their KL: check top_k, top_p, min_length and "
    "repetition_penalty in generation_kwargs, and rollout/sampler_kl with vLLM."
)
def kl_negative(history: History, facts: RunFacts) -> str | None:
    kl = mean(history.last("rollout/kl", NEGATIVE_KL_ITERATIONS))
    errors = np.nan_to_num(history.last("rollout/kl_se", NEGATIVE_KL_ITERATIONS))
    error = float(np.sqrt(np.square(errors).sum())) / NEGATIVE_KL_ITERATIONS
    if not kl < -max(NEGATIVE_KL_NATS, NEGATIVE_KL_ERRORS * error):
        return None
    return f"KL to the reference was {kl:.4f} nats per token in the last {NEGATIVE_KL_ITERATIONS} iterations"


@check(
    "The policy drifts from the reference: raise alg.kl_div.coeff, or lower the learning rate or n_epochs. Read some "
    "replies before trusting the reward."
)
def kl_exploding(history: History, facts: RunFacts) -> str | None:
    limit = EXPLODING_KL_NATS if facts.target_kl is None else EXPLODING_KL_TIMES_TARGET * facts.target_kl
    kl = history.last("rollout/kl", EXPLODING_KL_ITERATIONS)
    # With a coefficient of 0 the KL is unconstrained on purpose.
    if not len(kl) or not (kl > limit).all() or history.now.get("rollout/kl_coeff") == 0:
        return None
    target = "" if facts.target_kl is None else f", with a target of {facts.target_kl:g}"
    return f"KL to the reference is {kl[-1]:.2f} nats per token{target}"


@check(
    "The controller cannot hold the target: choose another alg.kl_div.coeff or target_kl, or another learning rate "
    "(lower if the coefficient grows, higher if it shrinks)."
)
def kl_coefficient(history: History, facts: RunFacts) -> str | None:
    coeff, start = history.now.get("rollout/kl_coeff", math.nan), mean(history.first("rollout/kl_coeff", 1))
    kl = history.now.get("rollout/kl", math.nan)
    if facts.target_kl is None or not start > 0:
        return None
    too_high = coeff >= COEFFICIENT_FACTOR * start and kl > facts.target_kl
    too_low = coeff <= start / COEFFICIENT_FACTOR and kl < facts.target_kl
    if not too_high and not too_low:
        return None
    side = "above" if too_high else "below"
    return f"the KL coefficient went from {start:g} to {coeff:.2g}, but the KL is still {side} its target"


@check(
    "Old and new log-probabilities of the same tokens differ before any update, so the loss is wrong: run `rl4dialog "
    "doctor` to find out whether padding, dropout or the sampler is the cause."
)
def first_ratio(history: History, facts: RunFacts) -> str | None:
    approx_kl = history.now.get("train/first_approx_kl", math.nan)
    if not approx_kl > FIRST_KL_TOLERANCE[facts.precision]:
        return None
    off = math.expm1(math.sqrt(2 * approx_kl))
    return f"the probability ratio differs from 1 by about {off:.1%} in the first minibatch"


@check(
    "Replies come from another distribution than the policy's, which biases every update: raise top_k or top_p in "
    "generation_kwargs, and remove penalties; or set importance_correction."
)
def truncated_sampler(history: History, facts: RunFacts) -> str | None:
    mass = mean(history.last("rollout/truncated_mass", TRUNCATED_ITERATIONS))
    if mass > TRUNCATED_MASS:
        return f"the sampler cuts off {mass:.0%} of the policy's distribution"
    kl = mean(history.last("rollout/sampler_kl", TRUNCATED_ITERATIONS))
    return f"the sampler's KL from the policy is {kl:.2f} nats per token" if kl > SAMPLER_KL else None


CHECKS = (kl_negative, kl_exploding, kl_coefficient, first_ratio, truncated_sampler)
