"""Mixin that lets stable-baselines3's on-policy algorithms train language models on rollouts of whole replies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, ClassVar, Literal, Self, TypedDict

import numpy as np
import torch
from pydantic import AfterValidator, Field, InstanceOf
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor
from torch.distributions import Categorical, kl_divergence, register_kl
from typing_extensions import Unpack

from rl4dialog.algorithms.schedules import SCHEDULED, IterationSchedules, RateSettings, ScheduleSettings, as_schedule
from rl4dialog.core.arguments import Count, Epochs, Fraction, LearningRate, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.process_memory import return_unused_memory
from rl4dialog.functional import distributed
from rl4dialog.functional.distributed import gathered
from rl4dialog.functional.log_probs import token_kl
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import EvaluatedActions, LMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.gradient_steps import StepGuard
from rl4dialog.policies.references import WeightCopy
from rl4dialog.policies.sharding import shard_policy
from rl4dialog.rollouts.buffer import Credit, SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.conversations import ConstantGroups, GroupSettings
from rl4dialog.rollouts.kl_controllers import FixedKLController, KLController


def existing_device(name: str) -> str:
    """Check that a device exists on this machine and return its name."""
    if name == "auto":
        return name
    try:
        device = torch.device(name)
        n_devices = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        if (device.index or 0) < n_devices[device.type]:
            return name
    except (RuntimeError, KeyError):
        raise ValueError("Input should be auto, cpu, cuda, cuda:<number> or mps") from None
    raise ValueError("Input should be a device of this machine, such as cpu, or auto")


class CommonArguments(TypedDict, total=False):
    """Arguments of all algorithms in stable-baselines3 and sb3-contrib, on-policy or off-policy."""

    policy: Any
    env: Any
    policy_kwargs: dict[str, Any] | None
    learning_rate: LearningRate | Schedule
    n_steps: Count
    batch_size: Count
    gamma: Fraction
    use_sde: Literal[False]
    sde_sample_freq: Annotated[int, Field(ge=-1)]
    stats_window_size: Count
    verbose: Literal[0, 1, 2]
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None
    device: Annotated[str, AfterValidator(existing_device)] | InstanceOf[torch.device]
    _init_setup_model: bool


class OnPolicyArguments(CommonArguments, total=False):
    """Arguments of on-policy algorithms in stable-baselines3 and sb3-contrib. No algorithm has all of them."""

    n_epochs: Epochs
    gae_lambda: Fraction
    clip_range: Positive | Schedule
    clip_range_vf: Positive | Schedule | None
    normalize_advantage: bool
    ent_coef: NonNegative
    vf_coef: NonNegative
    max_grad_norm: Positive
    target_kl: Positive | None
    rms_prop_eps: Positive
    use_rms_prop: bool
    tensorboard_log: str | None


class TextArguments(OnPolicyArguments, total=False):
    """The same for algorithms on text, where some can have a schedule in the config."""

    learning_rate: LearningRate | Schedule | RateSettings  # type: ignore[misc]
    clip_range: Positive | Schedule | ScheduleSettings  # type: ignore[misc]
    clip_range_vf: Positive | Schedule | ScheduleSettings | None  # type: ignore[misc]


STEP_BACK = 1.5  # the factor at which stable-baselines3 stops an update before a step
MAX_HALVINGS = 6  # then the policy takes no step
# Cost of a look against a small error of the mean: two passes without gradients over an eighth of the rollout.
LOOK_AT_ONE_IN, MIN_TOKENS_LOOKED_AT = 8, 512


class LMRolloutMixin(IterationSchedules):
    """Mixin for subclasses of stable-baselines3's ``OnPolicyAlgorithm``. Their ``train()`` then receives whole replies.

    ``rollout_buffer.get(batch_size)`` yields :class:`~rl4dialog.functional.replies.ReplySamples`. For these,
    ``policy.evaluate_actions(samples.observations, samples.actions)`` returns one value, log-probability and entropy
    per agent token, in the same order as ``samples.advantages`` and the other fields.

    An iteration collects at least ``n_steps * n_envs`` agent tokens in whole episodes, and counts as exactly that many
    timesteps. ``learn(n_iters * n_steps * n_envs)`` therefore runs ``n_iters`` iterations; ``rollout/tokens`` logs the
    true number of tokens. During collection ``num_timesteps`` grows in multiples of ``n_envs``, as callbacks expect,
    and reaches the full number only at the last step of the environments. A rollout that a callback stops is discarded,
    including its timesteps.

    Args:
        kl_controller: Controller of the KL penalty; no penalty by default.
        collector: Rollout collector; by default all rewards come from the environments.
        normalize_rewards: Whiten the rewards of each iteration.
        sharded: Shard the policy over the processes.
        credit: ``token`` for one step of advantage estimation per agent token, ``turn`` for one per turn of a
            conversation: a turn's tokens share its advantage, and each pays its own KL penalty. Or an advantage
            estimator of your own, by its id or ``{id: ..., args: {...}}``.
        turn_gamma: Discount factor of the step from one turn to the next. ``null`` is ``gamma``.
        turn_gae_lambda: Lambda of the step from one turn to the next. ``null`` is ``gae_lambda``.
        join_turns: Evaluate and train on the turns of a conversation in one row, if each prompt continues the previous
            one. Results are the same up to rounding, but the model reads the history once instead of once per turn.
            Encoder-decoder models always have one row per reply.
        kwargs: Keyword arguments of the algorithm. Common ones are listed below under stable-baselines3's names:
        learning_rate: Learning rate of policy and critic. It can have a schedule over the iterations: ``{start: 1e-4,
            end: 1e-5, schedule: linear, warmup: 0.1}``, or ``cosine`` or ``constant``. So can clip ranges, without
            ``warmup``.
        n_steps: Minimum number of agent tokens per environment and iteration.
        batch_size: Approximate number of agent tokens per minibatch; rows are never split.
        n_epochs: Number of passes over the replies of an iteration.
        gamma: Discount factor per agent token.
        gae_lambda: Lambda of generalized advantage estimation: 1 gives no bias from the critic, 0 the lowest variance.
        clip_range: Clipping range of the ratio of new to old probability around 1.
        clip_range_vf: Clipping range of the change in values; by default values are not clipped.
        normalize_advantage: Subtract the mean of the minibatch's advantages and divide by their standard deviation.
        ent_coef: Weight of the entropy bonus in the loss.
        vf_coef: Weight of the value loss.
        max_grad_norm: Maximum gradient norm; larger gradients are scaled down.
        target_kl: Stop an update when the policy's approximate KL from the rollout policy exceeds about this value, in
            nats per token.
        step_back: Look once more after the update: while its KL(new || old) over the whole vocabulary, on average over
            some states of the rollout, exceeds this multiple of ``target_kl``, the policy's step is halved. ``null``
            never looks.
        device: Device; ``auto`` selects a GPU if there is one, otherwise the CPU.
    """

    buffer_class: type[SequenceRolloutBuffer] = SequenceRolloutBuffer
    needs_critic = True  # whether the algorithm uses values
    no_meaning: ClassVar[Mapping[str, str]] = {}  # arguments of parent classes that are refused, with the reason
    maskable = False  # whether the policy must be maskable, or must not be
    group_size = 1  # number of consecutive environments with the same sequence of prompts
    constant_groups: ConstantGroups = "keep"
    max_resampling = 3
    critic_warmup_iters = 0
    # Whether `train()` computes the same in several processes: that of this class does, if it gets all numbers from
    # `rollout_buffer.get()` and the methods of `GatheredPolicy`.
    data_parallel = False
    shardable = False  # whether the policy can be sharded
    stop_requested = False  # set by a callback in any process to prevent the next rollout in all
    _rollout_began_at: int | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the arguments as they are given, before any class fills in defaults."""
        env = args[1] if len(args) > 1 else kwargs.get("env")
        cls.check_arguments(kwargs, getattr(env, "num_envs", 0))
        return super().__new__(cls)

    def __init__(
        self,
        *args: Any,
        kl_controller: KLController | None = None,
        collector: RolloutCollector | None = None,
        normalize_rewards: bool = False,
        sharded: bool = False,
        credit: Credit = "token",
        turn_gamma: Fraction | None = None,
        turn_gae_lambda: Fraction | None = None,
        join_turns: bool = True,
        step_back: Positive | None = STEP_BACK,
        **kwargs: Unpack[TextArguments],
    ) -> None:
        self.step_back = step_back
        self._sharded = sharded
        self._join_turns = join_turns
        self._credit = {"credit": credit, "turn_gamma": turn_gamma, "turn_gae_lambda": turn_gae_lambda}
        self.step_guard = StepGuard()
        self.kl_controller = kl_controller or FixedKLController(0.0)
        self.collector = collector or RolloutCollector()
        of_buffer = {"normalize_rewards": normalize_rewards, **self._buffer_kwargs()}
        buffer = {"rollout_buffer_class": self.buffer_class, "rollout_buffer_kwargs": of_buffer}
        schedules = {name: as_schedule(kwargs[name], name) for name in SCHEDULED if name in kwargs}  # type: ignore[literal-required]
        super().__init__(*args, **{**kwargs, **buffer, **schedules})

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        """Check constraints on config arguments beyond their types."""
        for name in SCHEDULED:
            as_schedule(args.get(name), name)
        for name, why in cls.no_meaning.items():
            if name in args:
                advice = "remove it, or use another algorithm, such as ppo"
                raise ConfigError(f"alg.args.{name} has no meaning: {cls.__name__.lower()} {why}; {advice}")
        if args.get("step_back") is not None and args.get("target_kl") is None:
            raise ConfigError("alg.args.step_back has no effect without alg.args.target_kl, of which it is a multiple")

    @property
    def iteration(self) -> int:
        """Number of collected iterations, without an unfinished one."""
        n_timesteps = self.num_timesteps if self._rollout_began_at is None else self._rollout_began_at  # type: ignore[attr-defined]
        return int(n_timesteps // self.timesteps_per_iteration)

    @property
    def is_critic_warmup(self) -> bool:
        """Whether the collected iteration trains only the critic."""
        return 0 < self.iteration <= self.critic_warmup_iters

    @property
    def timesteps_per_iteration(self) -> int:
        """Agent tokens that an iteration counts as, in this process."""
        return int(self.n_steps * self.n_envs)  # type: ignore[attr-defined]

    def _update_learning_rate(self, optimizers: Any) -> None:
        """Set the scheduled learning rate, times the factor of each group of parameters."""
        super()._update_learning_rate(optimizers)  # type: ignore[misc]
        for group in self.policy.optimizer.param_groups:  # type: ignore[attr-defined]
            group["lr"] *= group.get("lr_factor", 1.0)

    def _buffer_kwargs(self) -> dict[str, Any]:
        """Additional arguments of the rollout buffer."""
        return self._credit

    def _reward_kl_coeff(self) -> float:
        """KL penalty per nat in the reward."""
        return self.kl_controller.coeff

    def set_random_seed(self, seed: int | None = None) -> None:
        """Set all seeds: different for each process, equal for the environments of a group, which share prompts.

        Environments are numbered over all processes, so their prompts do not depend on the distribution over processes.
        """
        algorithm: Any = self
        if (self.group_size == 1 and distributed.n_processes() == 1) or algorithm.env is None:
            super().set_random_seed(seed)  # type: ignore[misc]
            return
        seed = distributed.all_gather_object(int(np.random.default_rng().integers(2**31)))[0] if seed is None else seed
        super().set_random_seed(seed + distributed.process_index())  # type: ignore[misc]
        first = distributed.process_index() * algorithm.env.num_envs
        # As set by VecEnv.seed() and used by the next reset(); seed() cannot give two environments the same seed.
        algorithm.env._seeds = [seed + (first + i) // self.group_size for i in range(algorithm.env.num_envs)]

    def _setup_model(self) -> None:
        """Build the policy. All processes start with the main process's weights."""
        super()._setup_model()  # type: ignore[misc]
        policy: Any = self.policy  # type: ignore[attr-defined]
        policy.n_rollout_rows = self.n_envs  # type: ignore[attr-defined]
        distributed.broadcast([*policy.parameters(), *policy.buffers()])
        if self._sharded:
            shard_policy(policy)
        self.rollout_buffer.whitened = getattr(self, "normalize_advantage", False)  # type: ignore[attr-defined]

    def train(self) -> None:
        """Run the algorithm's update on the collected rollout, skipping steps with a non-finite gradient."""
        algorithm: Any = self
        policy, max_grad_norm = algorithm.policy, algorithm.max_grad_norm
        norm_of_sum = math.inf
        if distributed.n_processes() > 1:
            # Its numbers are those of all processes; its gradients are clipped once they are summed.
            algorithm.policy, algorithm.max_grad_norm = GatheredPolicy(policy), math.inf
            norm_of_sum = max_grad_norm or math.inf  # TRPO's is 0, and unused
        before = self._weights_before()
        try:
            with self.step_guard.around(policy.optimizer, norm_of_sum):
                super().train()  # type: ignore[misc]
        finally:
            algorithm.policy, algorithm.max_grad_norm = policy, max_grad_norm
        self._limit_step(before)
        self._end_update()

    def _weights_before(self) -> WeightCopy | None:
        """The policy's weights before an update, if its step is limited."""
        is_limited = self.step_back is not None and getattr(self, "target_kl", None) is not None
        return self.policy.copied_weights() if is_limited and not self.is_critic_warmup else None  # type: ignore[attr-defined]

    def _limit_step(self, before: WeightCopy | None) -> None:
        """Halve the policy's step while it leads too far from the weights before the update.

        Estimates on the rollout's own tokens miss probability that moves to tokens that were never sampled, which is
        where pushing down the tokens of a peaked policy moves it. Only the policy goes back, along a straight line, as
        in TRPO's line search; a critic keeps its update.
        """
        if before is None:
            return
        limit = self.step_back * self.target_kl  # type: ignore[attr-defined]
        kl, n_halvings = self._kl_from(before), 0
        self.logger.record("train/update_kl", kl)  # type: ignore[attr-defined]
        while not kl <= limit and n_halvings < MAX_HALVINGS:  # which NaN is not
            before.pull(0.5)
            kl, n_halvings = self._kl_from(before), n_halvings + 1
        if not kl <= limit:
            before.pull(1.0)
            kl = 0.0
        self.logger.record("train/kept_update_kl", kl)  # type: ignore[attr-defined]
        self.logger.record("train/step_halvings", n_halvings)  # type: ignore[attr-defined]

    @torch.no_grad()
    def _kl_from(self, before: WeightCopy) -> float:
        """Mean KL(policy || policy before the update) over the vocabulary at evenly spaced rows of the rollout."""
        policy, rollout = self.policy, self.rollout_buffer.replies  # type: ignore[attr-defined]
        every = min(LOOK_AT_ONE_IN, max(1, rollout.n_tokens // MIN_TOKENS_LOOKED_AT))

        def kl_of(part: Replies) -> Tensor:
            new = policy.get_distribution(part.observations).distribution.logits
            with before.in_place():
                old = policy.get_distribution(part.observations).distribution.logits
            return part.scattered(token_kl(new, old))

        some = rollout[torch.arange(0, len(rollout), every)].to(policy.device)
        total = some.computed(kl_of, policy.lockstep, 3 * policy.n_logits).sum()
        total, n_tokens = distributed.all_reduce_numbers(float(total), some.n_tokens)
        return total / n_tokens

    def _end_update(self) -> None:
        """Move the reference, prepare the partner, log skipped steps and constant advantages, return unused memory."""
        algorithm: Any = self
        algorithm.policy.update_reference(self.iteration)
        if self.collector.partner is not None:
            self.collector.partner.begin_iteration(self.iteration + 1)
        algorithm.logger.record("train/skipped_steps", self.step_guard.n_skipped)
        found = algorithm.rollout_buffer.found_constant
        n_constant, n_compared = distributed.all_reduce_numbers(sum(found), len(found))
        if n_compared:
            algorithm.logger.record("train/constant_advantages", n_constant / n_compared)
        return_unused_memory()

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: SequenceRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """Fill the buffer with whole episodes, apply the KL penalty, compute advantages, and log under ``rollout/``."""
        algorithm: Any = self
        algorithm.policy.set_training_mode(False)
        rollout_buffer.reset()
        callback.on_rollout_start()
        if distributed.all_reduce_max(int(self.stop_requested)):
            self.stop_requested = False
            return False
        n_timesteps = n_rollout_steps * env.num_envs
        began_at = algorithm.num_timesteps

        def on_step(step: dict[str, Any], n_tokens: int, is_last: bool) -> bool:
            so_far = min(n_tokens // env.num_envs * env.num_envs, n_timesteps - env.num_envs)
            algorithm.num_timesteps = began_at + (n_timesteps if is_last else so_far)
            callback.update_locals(step)
            may_continue = callback.on_step()
            if not may_continue and distributed.n_processes() > 1:  # all finish their rollouts, then stop
                self.stop_requested = True
                return True
            return may_continue

        stats = None
        self._rollout_began_at = began_at
        try:
            stats, algorithm._last_obs = self.collector.collect(
                algorithm.policy,
                env,
                rollout_buffer,
                algorithm._last_obs,
                n_timesteps,
                on_step,
                GroupSettings(self.group_size, self.constant_groups, self.max_resampling),
                self.iteration + 1,
                self._join_turns,
            )
        finally:
            self._rollout_began_at = None
            algorithm.num_timesteps = began_at + (n_timesteps if stats is not None else 0)
        if stats is None:
            return False
        # KL penalty per token (Ziegler et al. 2019, arXiv 1909.08593). Advantages: GAE (Schulman et al. 2016,
        # arXiv 1506.02438), or those of GroupRolloutBuffer.
        rollout_buffer.samples = stats.samples
        rollout_buffer.compute_rewards(self._reward_kl_coeff(), algorithm.policy.precision)
        rollout_buffer.compute_returns_and_advantage()

        # Episode statistics, as in stable-baselines3, for `rollout/ep_rew_mean`; then the means of the rollout.
        algorithm._update_info_buffer([{"episode": episode} for episode in stats.episodes], np.array([]))
        for name, value in {**stats.means, **stats.seconds, **rollout_buffer.logged}.items():
            algorithm.logger.record(name, value)
        algorithm.logger.record("rollout/kl_coeff", self.kl_controller.coeff)
        algorithm.logger.record("rollout/kl_is_rounding", float(rollout_buffer.kl_is_rounding))
        algorithm.logger.record("rollout/constant_rewards", float(rollout_buffer.constant_rewards))
        # Adapt the KL coefficient for the next iteration (Ziegler et al. 2019, section 2.2).
        if not self.is_critic_warmup:
            self.kl_controller.step(stats.means["rollout/kl"], int(stats.means["rollout/tokens"]))
        callback.update_locals(locals())
        callback.on_rollout_end()
        self.step_guard.begin_iteration(self.iteration)
        if algorithm.num_timesteps < algorithm._total_timesteps:
            algorithm.policy.generate_ahead(algorithm._last_obs)
        algorithm.policy.weights_will_change()  # the update on this rollout follows
        return_unused_memory()
        return True


class GatheredPolicy:
    """A policy whose numbers are those of the tokens of all processes; only this one's own have a gradient."""

    def __init__(self, policy: LMActorCriticPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def evaluate_actions(self, obs: Obs, actions: Tensor) -> EvaluatedActions:
        return EvaluatedActions(*map(gathered, self._policy.evaluate_actions(obs, actions)))

    def predict_values(self, obs: Obs) -> Tensor:
        return gathered(self._policy.predict_values(obs))

    def get_distribution(self, obs: Obs) -> CategoricalDistribution:
        found = self._policy.get_distribution(obs)
        found.distribution = _as(_Gathered, found.distribution)
        return found


class _Gathered(Categorical):
    def log_prob(self, value: Tensor) -> Tensor:
        return gathered(super().log_prob(value))


@register_kl(_Gathered, _Gathered)
def _kl(first: _Gathered, second: _Gathered) -> Tensor:
    return gathered(kl_divergence(_as(Categorical, first), _as(Categorical, second)))


def _as(kind: type[Categorical], distribution: Any) -> Categorical:
    """The same distribution, without a copy of its tensors, which have the size of the vocabulary."""
    found = copy(distribution)
    found.__class__ = kind
    return found


def with_rollouts(algorithm: Any) -> Any:
    """Add whole-reply rollouts to an algorithm's class; a class that has them is returned unchanged."""
    if not isinstance(algorithm, type) or not issubclass(algorithm, OnPolicyAlgorithm):
        wanted = "which is not an on-policy algorithm: it must derive from stable-baselines3's OnPolicyAlgorithm"
        raise ConfigError(f"alg.id names {algorithm!r}, {wanted}")
    if issubclass(algorithm, LMRolloutMixin):
        return algorithm
    own: dict[str, Any] = {"__doc__": algorithm.__doc__, "__module__": algorithm.__module__}
    own["data_parallel"] = getattr(algorithm, "data_parallel", False)
    return type(algorithm.__name__, (LMRolloutMixin, algorithm), own)
