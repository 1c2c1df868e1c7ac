"""The stages of an improvement: whether there are enough votes for PPO, and the configs, made from that of the run.

What the run's config says is kept: data, environments, lengths, sampling, metrics, and an algorithm with rollouts.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4dialog.core.config import OnPolicyConfig, SupervisedConfig, TextConfig
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.feedback import counted
from rl4dialog.core.plugins import absolute_import
from rl4dialog.core.types import is_number
from rl4dialog.data.ratings import read_latest
from rl4dialog.functional.statistics import Interval, wilson_interval
from rl4dialog.runs.provenance import config_folder
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.run_folder import MODEL_FOLDER
from rl4dialog.scores.reward_models import reward_model_folder
from rl4dialog.training.building.policy import evaluation_kwargs
from rl4dialog.training.building.texts import format_args
from rl4dialog.training.tiny_bert import TINY_BERT

MIN_PREFERENCES = 50
RULE = (
    f"PPO needs at least {MIN_PREFERENCES} preferences, and a reward model whose share of right held-out preferences "
    f"has a 95 % interval above 0.5. Otherwise, the model learns the corrections alone."
)
_HELD_OUT = ("val", "test")
REWARD_MODEL, CORRECTIONS, POLICY, COMPARISON = "reward_model", "corrections", "policy", "comparison"
FEEDBACK_FILE = "feedback.jsonl"
N_REPEATS = 10
"""Number of times that each correction is learned."""
OLD_SHARE = 7
"""Old samples per correction and repetition."""

_HELD_OUT_SHARE = 0.2  # of the judged conversations, for each of val and test
_N_MODELS = 3
_BATCH_SIZE = 32  # of the reward model
_MIN_EPOCHS, _MIN_STEPS = 3, 50  # of the reward model; few votes need more epochs
_REWARD_MODEL_TRAINING = {"learning_rate": 1e-3, "weight_decay": 0.01, "warmup_ratio": 0.1}
# Settings of task_configs/small_talk/gpt2_ppo.yml, for runs without rollouts. More iterations cost diversity.
_N_ITERS, _TOKENS_PER_ITERATION = 10, 3072
_PPO = {
    **{"batch_size": 1024, "n_epochs": 2, "learning_rate": 1e-4, "gamma": 1.0, "gae_lambda": 0.95, "vf_coef": 0.5},
    "max_grad_norm": 1.0,
}
_KL = {"coeff": 0.05, "target_kl": 0.1}
_MIN_BATCH = 8  # of corrections and old samples
_TENTH = 0.1  # of the learning rate of the run, for the corrections
_UNKNOWN_RATE = 5e-5  # transformers' default


@dataclass(frozen=True)
class Votes:
    """What holds of a feedback file.

    An improvement does not learn from ratings of whole conversations. The judged replies are counted by model.
    """

    preferences: frozenset[str]
    n_corrections: int
    n_ratings: int
    n_conversation_ratings: int = 0
    models: Mapping[str, int] = field(default_factory=dict)
    n_empty: int = 0

    @property
    def are_enough(self) -> bool:
        """Whether there are enough preferences for a reward model that PPO can use."""
        return len(self.preferences) >= MIN_PREFERENCES

    def __str__(self) -> str:
        counts = {"preference": len(self.preferences), "correction": self.n_corrections, "rating": self.n_ratings}
        used = ", ".join(counted(n, kind) for kind, n in counts.items())
        n_unused = self.n_conversation_ratings
        return used + (f" (and {counted(n_unused, 'conversation_rating')}, not used here)" if n_unused else "")


@dataclass(frozen=True)
class Verdict:
    """How many preferences that it did not learn from a reward model ranks right; a tie counts half."""

    n_right: float
    n: int

    @property
    def interval(self) -> Interval:
        """95 % interval of the share that is right, with the preferences as independent trials."""
        return wilson_interval(self.n_right, self.n) if self.n else Interval(0.0, 1.0)

    @property
    def is_good(self) -> bool:
        return self.interval.low > 0.5

    def __str__(self) -> str:
        share = f"{self.n_right / self.n:.2f}" if self.n else "unknown"
        interval = f"{self.interval.low:.2f} to {self.interval.high:.2f}"
        return f"{self.n_right:g} of {self.n} held-out preferences right: {share} (95 % interval {interval})"


def read_votes(path: Path) -> Votes:
    """Read what holds of a feedback file."""
    given = read_latest(path)
    preferences = [each for each in given if each.kind == "preference"]
    replies = [reply for each in given for reply in each.replies if not each.rates_conversation]
    return Votes(
        frozenset(each.id for each in preferences if each.replies[0].text != each.replies[1].text),
        sum(each.kind == "correction" for each in given),
        sum(each.kind == "rating" for each in given),
        sum(each.rates_conversation for each in given),
        Counter(reply.model for reply in replies),
        sum(not reply.text.strip() for reply in replies),
    )


def read_verdict(run: Path, votes: Votes) -> Verdict:
    """Read how a complete reward model run ranks the preferences of its val and test splits after training.

    Corrections are left out: that people write other replies than the model is easy to learn.
    """
    read, margins = read_run(run), []
    for split in _HELD_OUT:
        epochs = read.epochs(split)
        found = read.predictions(split, epochs[-1]) if epochs else None
        if found is None:
            raise RunFolderError(f"the reward model run {run} has no predictions of split {split!r}; train it again")
        rows = zip(found.sample_ids, found.scores.get("margin", [math.nan] * len(found)), strict=True)
        margins += [float(margin) for id, margin in rows if id in votes.preferences]
    return Verdict(sum(1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in margins), len(margins))


@dataclass(frozen=True)
class Improvable:
    """A run to improve: its folder and config, and the output folder of the stages."""

    run: Path
    config: TextConfig
    output: Path

    @property
    def format_args(self) -> dict[str, Any]:
        """Format of the run's prompts."""
        found = format_args(self.config)
        if found is None:
            raise ConfigError(
                f"the datapool {self.config.datapool.id!r} of {self.run} has no dialogues, which feedback on "
                f"conversations needs; improve a run with a datapool of dialogues"
            )
        return found

    @property
    def has_turns(self) -> bool:
        return self.config.env is not None and self.config.env.args.max_turns > 1

    @property
    def feedback(self) -> dict[str, Any]:
        """Arguments of the datapool of feedback that all stages share."""
        args = {"path": str(self.output / FEEDBACK_FILE), "context_size": self.format_args["context_size"]}
        # In a task, all conversations begin with the same opening; the first answer tells them apart.
        return {**args, "start_utterances": 3} if self.has_turns else args

    @property
    def corrections(self) -> dict[str, Any]:
        """Arguments of the datapool of all corrections, in its split ``train``."""
        return {**self.feedback, **self.format_args, "use": "corrections", "held_out_share": 0.0}

    def model(self, stage: str | None = None) -> str:
        """Folder of the model after a stage; by default of the run's own."""
        return str((self.run if stage is None else self.output / stage) / MODEL_FOLDER)


def stage_configs(improvable: Improvable, votes: Votes, with_ppo: bool) -> dict[str, dict[str, Any]]:
    """Make the configs of all stages, in order, with or without a reward model and PPO."""
    if not isinstance(improvable.config, (SupervisedConfig, OnPolicyConfig)):
        raise ConfigError(
            f"a run with alg.id: {improvable.config.alg.id} cannot be improved; this needs alg.id: supervised or an "
            f"algorithm with rollouts, such as ppo"
        )
    start, found = improvable.model(), {}
    if with_ppo:
        found[REWARD_MODEL] = _reward_model(improvable, votes)
    if votes.n_corrections:
        found[CORRECTIONS] = _corrections(improvable, votes)
        start = improvable.model(CORRECTIONS)
    if with_ppo:
        found[POLICY] = _policy(improvable, start)
    found[COMPARISON] = _comparison(improvable, with_ppo)
    return found


def _reward_model(improvable: Improvable, votes: Votes) -> dict[str, Any]:
    n_learned = (1 - 2 * _HELD_OUT_SHARE) * (len(votes.preferences) + votes.n_corrections + votes.n_ratings)
    n_epochs = max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / math.ceil(n_learned / _BATCH_SIZE)))
    training = {"num_train_epochs": n_epochs, "per_device_train_batch_size": _BATCH_SIZE, **_REWARD_MODEL_TRAINING}
    alg = {"id": "reward_model", "model_name": TINY_BERT, "center_coef": 0.01, "ensemble": _N_MODELS}
    return {
        "seed": improvable.config.seed,
        "tokenizer": {"model_name": TINY_BERT, "max_length": 128},
        "datapool": {"id": "feedback", "args": {**improvable.feedback, "held_out_share": _HELD_OUT_SHARE}},
        "alg": {**alg, "training_args": training},
        "train_evaluation": {"eval_every": n_epochs, "save_every": max(1, n_epochs // 3)},
    }


def _corrections(improvable: Improvable, votes: Votes) -> dict[str, Any]:
    """Supervised training on the corrections, mixed with samples of the run's datapool, once each."""
    config = improvable.config
    n_corrected = votes.n_corrections * N_REPEATS
    pools = [
        {"share": OLD_SHARE, **config.datapool.model_dump(mode="json")},
        {"id": "feedback", "share": 1, "args": improvable.corrections},
    ]
    training = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": _MIN_BATCH,
        "learning_rate": _TENTH * _learning_rate(config),
        "warmup_ratio": 0.05,
    }
    return {
        **_common(improvable, improvable.model(), "lora"),
        "datapool": {"id": "mixture", "args": {"pools": pools, "size": n_corrected * (1 + OLD_SHARE)}},
        "alg": {**_supervised(improvable), "training_args": training},
        "train_evaluation": _evaluations(config, [{"id": "length"}]),
    }


def _policy(improvable: Improvable, start: str) -> dict[str, Any]:
    """The run's own algorithm with rollouts, or PPO, on the reward model."""
    config = improvable.config
    reward_model = str(improvable.output / REWARD_MODEL)
    args: dict[str, Any] = {"model_name": reward_model, "std_penalty": 1.0}
    reward: dict[str, Any] = {"id": "learned_reward", "args": args, "normalize": "batch"}
    if improvable.has_turns:
        reward["pay"] = "turn"
    evaluations = _evaluations(config, _metrics(config, reward_model), isinstance(config, OnPolicyConfig))
    if isinstance(config, OnPolicyConfig):
        alg = config.alg.model_dump(mode="json", exclude_defaults=True)
        alg["policy"]["args"] = {**alg["policy"]["args"], "model_name": start}
        alg["policy"]["args"].pop("critic_from", None)
    else:
        alg, evaluations = _ppo(config, start), {**evaluations, "n_iters": _N_ITERS, "eval_every": 5}
    also = ("lora", "generation", "callbacks", "logging") if isinstance(config, OnPolicyConfig) else ("lora",)
    return {**_common(improvable, start, *also), "reward_fn": reward, "alg": alg, "train_evaluation": evaluations}


def _ppo(config: TextConfig, start: str) -> dict[str, Any]:
    sampling = evaluation_kwargs(config)
    if not sampling["do_sample"]:
        n_tokens = {"max_new_tokens": sampling["max_new_tokens"]} if "max_new_tokens" in sampling else {}
        sampling = {"do_sample": True, "top_k": 0, **n_tokens}
    n_envs = config.env.n_envs if config.env is not None else 1
    policy = {"id": config.policy_id, "args": {"model_name": start, "generation_kwargs": sampling}}
    return {
        "id": "ppo",
        "args": {"n_steps": math.ceil(_TOKENS_PER_ITERATION / n_envs), **_PPO},
        "kl_div": dict(_KL),
        "policy": policy,
    }


def _comparison(improvable: Improvable, with_ppo: bool) -> dict[str, Any]:
    config = improvable.config
    reward_model = str(improvable.output / REWARD_MODEL) if with_ppo else None
    reward = {} if config.reward_fn is None else {"reward_fn": config.reward_fn.model_dump(mode="json")}
    return {
        **_common(improvable, improvable.model()),
        **reward,
        "alg": {**_supervised(improvable), "training_args": {}},
        "train_evaluation": _evaluations(config, _metrics(config, reward_model)),
    }


def _common(improvable: Improvable, model: str, *also: str) -> dict[str, Any]:
    """What all stages of the language model share: the run's config with another model, and these of its other keys."""
    config, run = improvable.config, improvable.run
    resolved = config.model_dump(mode="json", exclude_defaults=True)
    kept = ("seed", "env", "task", "datapool", "precision")
    tokenizer = {**resolved["tokenizer"], "model_name": model}
    tokenizer.pop("vocab_size", None)  # of a built-in tokenizer, which the model's folder has
    imports = [absolute_import(name, config_folder(run)) for name in config.imports]
    return {
        **{key: copy.deepcopy(resolved[key]) for key in (*kept, *also) if resolved.get(key) is not None},
        "tokenizer": tokenizer,
        **({"imports": imports} if imports else {}),
    }


def _supervised(improvable: Improvable) -> dict[str, Any]:
    config = improvable.config
    return {
        "id": "supervised",
        "model_type": "seq2seq" if config.is_encoder_decoder else "causal",
        "model_name": improvable.model(),
        "generation_kwargs": evaluation_kwargs(config),
    }


def _evaluations(config: TextConfig, metrics: list[dict[str, Any]], with_training: bool = False) -> dict[str, Any]:
    """The run's evaluations, with other metrics. Without its training, nothing is left that depends on it."""
    given = config.train_evaluation.model_dump(mode="json", exclude_defaults=True)
    of_training = ("n_iters", "eval_every", "save_every", "keep_last", "keep_best", "generation_kwargs")
    kept = {key: value for key, value in given.items() if with_training or key not in of_training}
    return {**kept, "metrics": metrics}


def _metrics(config: TextConfig, reward_model: str | None) -> list[dict[str, Any]]:
    """The run's metrics, the length, and the new reward model in place of an earlier one."""
    metrics = []
    for metric in config.train_evaluation.metrics:
        name = metric.args.get("model_name")
        if metric.id != "learned_reward" or not isinstance(name, str) or reward_model_folder(name) is None:
            metrics.append(metric.model_dump(mode="json", exclude_defaults=True))
    if not any(metric["id"] == "length" for metric in metrics):
        metrics.append({"id": "length"})
    if reward_model is not None:
        metrics.append({"id": "learned_reward", "args": {"model_name": reward_model}})
    return metrics


def _learning_rate(config: TextConfig) -> float:
    """Learning rate with which the run's model learned its data; without supervised training, that of the run."""
    if isinstance(config, SupervisedConfig):
        rate: Any = config.alg.training_args.get("learning_rate")
    else:
        rate = config.alg.args.get("learning_rate") if config.warm_start is None else config.warm_start.learning_rate
    return float(rate) if is_number(rate) else _UNKNOWN_RATE
