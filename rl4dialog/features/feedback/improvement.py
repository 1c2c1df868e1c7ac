"""Improvement of a run's model by feedback, in stages: reward model, corrections, PPO and comparison.

The configs of the stages are made from that of the run: data, environments, lengths, sampling, metrics, and an
algorithm with rollouts are kept. A complete stage is not repeated, an interrupted one resumed.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl4dialog.core.config import OnPolicyConfig, RunConfig, SupervisedConfig, TextConfig, parse_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError, nearest_hint
from rl4dialog.core.feedback import counted
from rl4dialog.core.files import file_hash, json_object, naming_errors, replaced, write_json, write_text
from rl4dialog.core.plugins import absolute_import
from rl4dialog.core.types import is_number
from rl4dialog.core.yaml_loader import apply_overrides, load_yaml
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.ratings import read_latest
from rl4dialog.features.feedback.model_comparison import compare_models
from rl4dialog.features.feedback.report import effects, write_improvement_report
from rl4dialog.functional.statistics import Interval, wilson_interval
from rl4dialog.runs.provenance import config_folder
from rl4dialog.runs.reading import read_undamaged
from rl4dialog.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    MODEL_FOLDER,
    REPORT_FILE,
    RESULT_FILE,
    is_complete,
    is_unused,
    read_result,
)
from rl4dialog.scores.reward_models import KEY as SCORE
from rl4dialog.scores.reward_models import reward_model_folder
from rl4dialog.training.building.components import import_and_check
from rl4dialog.training.building.conditions import refuse_useless
from rl4dialog.training.building.policy import evaluation_kwargs
from rl4dialog.training.building.texts import build_pool, format_args
from rl4dialog.training.checkpoint import changes, is_done
from rl4dialog.training.own_process import RESUMED, ended, run_command, say, train_arguments
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
    **{"batch_size": 1024, "n_epochs": 2, "dual_clip": 3.0, "learning_rate": 1e-4, "gamma": 1.0, "gae_lambda": 0.95},
    **{"vf_coef": 0.5, "max_grad_norm": 1.0},
}
_KL = {"coeff": 0.05, "target_kl": 0.1}
_MIN_BATCH = 8  # of corrections and old samples
_TENTH = 0.1  # of the learning rate of the run, for the corrections
_UNKNOWN_RATE = 5e-5  # transformers' default


@dataclass(frozen=True)
class Votes:
    """What holds of a feedback file. Ratings of conversations are not learned; ``models`` counts judged replies."""

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
    """How a trained reward model ranks held-out preferences, but not corrections, which are easy to recognize."""
    read, margins = read_undamaged(run), []
    for split in _HELD_OUT:
        ends = read.ends(split)
        found = read.predictions(split, ends[-1]) if ends else None
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
            what = f"the datapool {self.config.datapool.id!r} of {self.run} has no dialogues"
            raise ConfigError(f"{what}, which feedback on conversations needs; improve a run that has some")
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
        needed = "this needs alg.id: supervised or an algorithm with rollouts, such as ppo"
        raise ConfigError(f"a run with alg.id: {improvable.config.alg.id} cannot be improved; {needed}")
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
    training: dict[str, Any] = {"num_train_epochs": 1, "per_device_train_batch_size": _MIN_BATCH, "warmup_ratio": 0.05}
    training["learning_rate"] = _TENTH * _learning_rate(config)
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
    args = {"n_steps": math.ceil(_TOKENS_PER_ITERATION / n_envs), **_PPO}
    return {"id": "ppo", "args": args, "kl_div": dict(_KL), "policy": policy}


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


STATE_FILE = "improve.json"


@dataclass(frozen=True)
class Stage:
    """A stage: its run folder, whose name is its own, its config as written, and validated."""

    folder: Path
    written: Mapping[str, Any]
    config: RunConfig

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def config_file(self) -> Path:
        return self.folder.with_name(f"{self.name}.yml")


@dataclass(frozen=True)
class Plan:
    """What will be done: the run to improve, its feedback, whether PPO is forced, and the stages in order."""

    improvable: Improvable
    feedback: Path
    votes: Votes
    force: bool
    stages: Sequence[Stage]

    @property
    def has_ppo(self) -> bool:
        """Whether PPO is planned; the reward model may still prevent it."""
        return any(stage.name == POLICY for stage in self.stages)


def make_plan(
    run: Path, config: TextConfig, feedback: Path, output: Path, force: bool = False, overrides: Sequence[str] = ()
) -> Plan:
    """Plan an improvement of a complete run, and check everything that can be checked before it starts.

    Nothing is written. The output folder of an interrupted improvement is continued. Overrides begin with the name of a
    stage, such as ``policy.train_evaluation.n_iters=10``.
    """
    read_result(run)
    improvable, votes = Improvable(run.absolute(), config, output.absolute()), read_votes(feedback)
    _check_same_feedback(improvable, feedback)
    with_ppo = votes.are_enough or force
    if not with_ppo and not votes.n_corrections:
        n_more = MIN_PREFERENCES - len(votes.preferences)
        needed = f"PPO takes at least {MIN_PREFERENCES} preferences ({n_more} more), and there are no corrections"
        cure = "collect more with rl4dialog select and rl4dialog ui --queue, or pass --force to run PPO anyway"
        raise DataError(f"{feedback} has {votes}: {needed} to learn; {cure}")
    if with_ppo and votes.n_empty and votes.n_empty == sum(votes.models.values()):
        cure = "let the model learn to reply first, with a warm start or from corrections alone"
        what = f"all {votes.n_empty} judged replies in {feedback} are empty"
        raise DataError(f"{what}, so a reward model can learn nothing; {cure}")
    written = stage_configs(improvable, votes, with_ppo)
    for override in overrides:
        _override(written, override)
    configs = {name: parse_config(given, f"stage {name}") for name, given in written.items()}
    stages = [Stage(improvable.output / name, written[name], config) for name, config in configs.items()]
    is_single = with_ppo and written[REWARD_MODEL]["alg"].get("ensemble", 1) == 1
    if is_single and written[POLICY]["reward_fn"].get("args", {}).get("std_penalty"):
        why = "a single reward model cannot disagree"  # which PPO would find only after its training
        raise ConfigError(f"reward_model.alg.ensemble is 1, and {why}; add --set policy.reward_fn.args.std_penalty=0")
    for stage in stages:
        import_and_check(stage.config, stage.config_file)
        refuse_useless(stage.config)
        _check_same_config(stage)
    if with_ppo:
        pool = written[REWARD_MODEL]["datapool"]
        for split in SPLITS:  # also of a plan, before there is a copy of the feedback
            build_pool(pool["id"], {**pool["args"], "path": str(feedback), "split": split})
    return Plan(improvable, feedback, votes, force, stages)


def plan_text(plan: Plan) -> str:
    """Say what will be done, and by which rule."""
    improvable, votes = plan.improvable, plan.votes
    judged = ", ".join(f"{n} of {model}" for model, n in votes.models.items()) or "none"
    judged += f" ({votes.n_empty} empty)" if votes.n_empty else ""
    # A chosen checkpoint is part of a model's name: "runs/my_project/my_run (checkpoint last)".
    is_own = any(Path(model).name.split(" (")[0] == improvable.run.name for model in votes.models)
    judged += "" if is_own or not votes.models else " (none of this run)"
    lines = [
        f"run       {improvable.run} (alg.id: {improvable.config.alg.id}, datapool {improvable.config.datapool.id})",
        f"feedback  {plan.feedback}: {votes}",
        f"replies   {judged}",
        f"rule      {RULE}",
        f"          {_expected(plan)}",
        f"output    {improvable.output}",
        "",
    ]
    width = max(len(stage.name) for stage in plan.stages)
    for number, stage in enumerate(plan.stages, start=1):
        lines.append(f"{number}. {stage.name:<{width}}  {_described(plan, stage)}  [{_progress(stage)}]")
    return "\n".join(lines)


def write_files(plan: Plan) -> None:
    """Write what a later call compares, and the config files of the stages; keep a copy of the feedback."""
    output, run = plan.improvable.output, plan.improvable.run
    copy = output / FEEDBACK_FILE
    with naming_errors(output, "; choose another --output"):
        output.mkdir(parents=True, exist_ok=True)
        state = {"run": str(run), "run_hash": file_hash(run / RESULT_FILE), "feedback_hash": file_hash(plan.feedback)}
        write_json(output / STATE_FILE, state)
        if not copy.exists():
            with replaced(copy) as temporary:
                shutil.copyfile(plan.feedback, temporary)
        for stage in plan.stages:
            by_hand = train_arguments(stage.config_file, output / "by_hand" / stage.name)
            if stage.name == COMPARISON:
                by_hand = ["evaluate", "--config_path", str(stage.config_file), "--model", "MODEL"]
            header = f"# Stage {stage.name} of rl4dialog improve. By hand:\n#   rl4dialog {' '.join(by_hand)}\n"
            text = yaml.safe_dump(dict(stage.written), sort_keys=False, allow_unicode=True, width=120)
            write_text(stage.config_file, header + text)


def _expected(plan: Plan) -> str:
    votes, n = plan.votes, len(plan.votes.preferences)
    if plan.force:
        few = "" if votes.are_enough else ", too few to tell whether the reward model is better than a coin"
        return f"--force: PPO runs whatever the votes ({counted(n, 'preference')}{few})."
    if plan.has_ppo:
        return "There are enough preferences; the reward model decides after stage 1."
    few = f"There {'is' if n == 1 else 'are'} {counted(n, 'preference')}, {MIN_PREFERENCES - n} too few"
    learned = f"the {counted(votes.n_corrections, 'correction')} alone, without PPO"
    return f"{few}: the model learns {learned}. --force runs PPO anyway."


def _described(plan: Plan, stage: Stage) -> str:
    config, votes = stage.config, plan.votes
    if stage.name == REWARD_MODEL:
        ensemble = f"{n} x " if (n := config.alg.ensemble) > 1 else ""  # type: ignore[attr-defined]
        return f"{ensemble}{config.alg.model_name} on all {votes}"  # type: ignore[attr-defined]
    if stage.name == CORRECTIONS:
        n_old = votes.n_corrections * N_REPEATS * OLD_SHARE
        old = plan.improvable.config.datapool.id
        corrections = counted(votes.n_corrections, "correction")
        return f"supervised: {corrections}, each {N_REPEATS} times, among {n_old} samples of {old}"
    if stage.name == POLICY:
        rule = "" if plan.force else ", if the rule holds"
        return f"{config.alg.id}: {counted(config.n_iters, 'iteration')} on the reward model{rule}"
    return "replies to the test prompts before and after, with intervals"


def _progress(stage: Stage) -> str:
    if is_complete(stage.folder):
        return "done"
    if stage.name != COMPARISON and any((stage.folder / CHECKPOINTS_FOLDER).glob("*")):
        return "to be resumed"
    return "to be restarted" if (stage.folder / CONFIG_FILE).exists() else "to do"


def _override(written: Mapping[str, dict[str, Any]], override: str) -> None:
    """Apply an override, whose path begins with the name of a stage."""
    name, _, rest = override.partition(".")
    if name not in written:
        stages = f"{next(iter(written))}.seed=1{nearest_hint(name, written)} (there are: {', '.join(written)})"
        raise ConfigError(f"--set {override}: begin with a stage of this plan, such as {stages}")
    apply_overrides(written[name], [rest])


def _check_same_feedback(improvable: Improvable, feedback: Path) -> None:
    """Refuse another run or other feedback than those of an improvement in the output folder."""
    output = improvable.output
    if not (output / STATE_FILE).exists():
        if not is_unused(output):
            raise RunFolderError(f"{output} is not the folder of an improvement; choose another --output")
        return
    try:
        state = json_object((output / STATE_FILE).read_text(encoding="utf-8"))
        then = Path(state["run"]), state["run_hash"], state["feedback_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{output / STATE_FILE} is damaged ({error}); choose another --output") from error
    if then[:2] != (improvable.run, file_hash(improvable.run / RESULT_FILE)):
        what = f"{improvable.run} is another one or was trained further since"
        raise ConfigError(f"{output} improves the run {then[0]}, and {what}; choose another --output")
    if then[2] != file_hash(feedback):
        old = output / FEEDBACK_FILE
        changed = f"since the improvement was started (then: {read_votes(old)}; now: {read_votes(feedback)})"
        cure = f"To learn from it, choose another --output; to continue with the old one, pass --feedback {old}"
        raise ConfigError(f"{feedback} has changed {changed}. {cure}")


def _check_same_config(stage: Stage) -> None:
    """Refuse a stage whose run was started with another config. A comparison trains nothing, and is made again."""
    if stage.name == COMPARISON or not stage.config_file.exists() or not (stage.folder / CONFIG_FILE).exists():
        return
    if changed := changes(load_yaml(stage.config_file), stage.written):
        first = f"{changed[0][1]} ({len(changed)} keys differ)"
        cure = "Pass the same --set and --force, or another --output"
        raise ConfigError(f"the stage {stage.name} was started with another config: {first}. {cure}")


def improve(plan: Plan) -> Path:
    """Run what a plan has left to do, compare the models before and after, and write the report; returns its path."""
    write_files(plan)
    verdict: Verdict | None = None
    learned: str | None = None  # stage of the latest model
    for stage in plan.stages:
        if stage.name == POLICY and verdict is not None and not verdict.is_good and not plan.force:
            say(f"The reward model is no better than a coin, so {POLICY} is skipped; --force runs it anyway")
            continue
        if stage.name == COMPARISON:
            if learned is None:
                why = f"the reward model ranks {verdict}, which is no better than a coin, and there are no corrections"
                cure = "collect more votes, or pass --force to run PPO anyway"
                raise ConfigError(f"{why}, so nothing can be learned; {cure}")
            _compare(plan, stage, learned)
            continue
        train_stage(stage)
        if stage.name == REWARD_MODEL:
            verdict = read_verdict(stage.folder, plan.votes)
            say(f"The reward model ranks {verdict}")
        else:
            learned = stage.name
    output = plan.improvable.output
    result = f"Result: {effects(output / COMPARISON)}"
    say(result)
    return write_improvement_report(output / COMPARISON, output / REPORT_FILE, result, _facts(plan, verdict, learned))


def train_stage(stage: Stage) -> None:
    """Train a stage in its own process, unless it is complete."""
    if is_done(stage.folder, stage.config):
        return
    say(f"Stage {stage.name}")
    if code := run_command(train_arguments(stage.config_file, stage.folder, *RESUMED)):
        raise RunFolderError(f"the stage {stage.name} failed ({ended(code)}); rerun the command to continue")


def _compare(plan: Plan, stage: Stage, learned: str) -> None:
    assert isinstance(stage.config, TextConfig)
    improvable = plan.improvable
    corrections = improvable.corrections if plan.votes.n_corrections else None
    if not is_complete(stage.folder):
        say(f"Stage {stage.name}")
    compare_models(stage.config, Path(improvable.model()), Path(improvable.model(learned)), corrections, stage.folder)


def _facts(plan: Plan, verdict: Verdict | None, learned: str | None) -> dict[str, str]:
    improvable = plan.improvable
    feedback = _from_here(improvable.output / FEEDBACK_FILE)
    facts = {"run": _from_here(improvable.run), "feedback": f"{plan.votes} ({feedback})"}
    if verdict is not None:
        facts["reward model"] = str(verdict)
    trained = "corrections and old data, without PPO"
    if learned == POLICY:
        config = plan.stages[-2].config
        reward = config.reward_fn if isinstance(config, OnPolicyConfig) else None
        on = "reward model" if reward is None or reward.id == "learned_reward" else f"reward {reward.id}"
        trained = f"{config.alg.id} on the {on}" + (", after the corrections" if plan.votes.n_corrections else "")
    facts["trained by"] = trained + (" (--force)" if plan.force else "")
    facts["model"] = _from_here(Path(improvable.model(learned)))
    if plan.has_ppo:
        facts["rewards"] = f"{SCORE} is the score of the reward model; reward is that of the improved run's config"
    return facts


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
