"""The plan of an improvement, and its stages in order: a complete one is not repeated, an interrupted one resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl4dialog.core.config import OnPolicyConfig, RunConfig, TextConfig, parse_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError, nearest_hint
from rl4dialog.core.feedback import counted
from rl4dialog.core.files import file_hash, json_object, naming_errors
from rl4dialog.core.yaml_loader import apply_overrides, load_yaml
from rl4dialog.data.pool import SPLITS
from rl4dialog.experiments.improvement.stages import (
    COMPARISON,
    CORRECTIONS,
    FEEDBACK_FILE,
    MIN_PREFERENCES,
    N_REPEATS,
    OLD_SHARE,
    POLICY,
    REWARD_MODEL,
    RULE,
    Improvable,
    Verdict,
    Votes,
    read_verdict,
    read_votes,
    stage_configs,
)
from rl4dialog.experiments.own_process import run_command, say, train_arguments
from rl4dialog.runs.report.pages import effects, write_improvement_report
from rl4dialog.runs.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    REPORT_FILE,
    RESULT_FILE,
    is_complete,
    write_json,
    write_text,
)
from rl4dialog.scores.reward_models import KEY as SCORE
from rl4dialog.training.building.components import import_and_check
from rl4dialog.training.building.conditions import refuse_useless
from rl4dialog.training.building.texts import build_pool
from rl4dialog.training.checkpoint import changes, is_done

STATE_FILE = "improve.json"
_COLLECT = "collect more with rl4dialog select and rl4dialog ui --queue"
Compare = Callable[[TextConfig, Path, Path, dict[str, object] | None, Path], None]
"""Compares two models: takes the config of the evaluations, the folders of both models, the arguments of the datapool
of corrections (``None`` if there are none), and the run folder to write.
"""


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
    if not is_complete(run):
        raise RunFolderError(f"the run {run} is not complete: it has no {RESULT_FILE}, which is written last")
    improvable, votes = Improvable(run.absolute(), config, output.absolute()), read_votes(feedback)
    _check_same_feedback(improvable, feedback)
    with_ppo = votes.are_enough or force
    if not with_ppo and not votes.n_corrections:
        n_more = MIN_PREFERENCES - len(votes.preferences)
        raise DataError(
            f"{feedback} has {votes}: PPO takes at least {MIN_PREFERENCES} preferences ({n_more} more), and there are "
            f"no corrections to learn; {_COLLECT}, or pass --force to run PPO anyway"
        )
    if with_ppo and votes.n_empty and votes.n_empty == sum(votes.models.values()):
        raise DataError(
            f"all {votes.n_empty} judged replies in {feedback} are empty, so a reward model can learn nothing; let the "
            f"model learn to reply first, with a warm start or from corrections alone"
        )
    written = stage_configs(improvable, votes, with_ppo)
    for override in overrides:
        _override(written, override)
    configs = {name: parse_config(given, f"stage {name}") for name, given in written.items()}
    stages = [Stage(improvable.output / name, written[name], config) for name, config in configs.items()]
    is_single = with_ppo and written[REWARD_MODEL]["alg"].get("ensemble", 1) == 1
    if is_single and written[POLICY]["reward_fn"].get("args", {}).get("std_penalty"):
        raise ConfigError(  # PPO would find this only after the training of the reward model
            "reward_model.alg.ensemble is 1, and a single reward model cannot disagree; add "
            "--set policy.reward_fn.args.std_penalty=0"
        )
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
            partial = copy.with_suffix(".tmp")
            shutil.copyfile(plan.feedback, partial)
            partial.replace(copy)
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
    return (
        f"There {'is' if n == 1 else 'are'} {counted(n, 'preference')}, {MIN_PREFERENCES - n} too few: the model "
        f"learns the {counted(votes.n_corrections, 'correction')} alone, without PPO. --force runs PPO anyway."
    )


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
        raise ConfigError(
            f"--set {override}: begin with a stage of this plan, such as {next(iter(written))}.seed=1"
            f"{nearest_hint(name, written)} (there are: {', '.join(written)})"
        )
    apply_overrides(written[name], [rest])


def _check_same_feedback(improvable: Improvable, feedback: Path) -> None:
    """Refuse another run or other feedback than those of an improvement in the output folder."""
    output = improvable.output
    if not (output / STATE_FILE).exists():
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise RunFolderError(f"{output} is not the folder of an improvement; choose another --output")
        return
    try:
        state = json_object((output / STATE_FILE).read_text(encoding="utf-8"))
        then = Path(state["run"]), state["run_hash"], state["feedback_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{output / STATE_FILE} is damaged ({error}); choose another --output") from error
    if then[:2] != (improvable.run, file_hash(improvable.run / RESULT_FILE)):
        raise ConfigError(
            f"{output} improves the run {then[0]}, and {improvable.run} is another one or was trained further since; "
            f"choose another --output"
        )
    if then[2] != file_hash(feedback):
        raise ConfigError(
            f"{feedback} has changed since the improvement in {output} was started (then: "
            f"{read_votes(output / FEEDBACK_FILE)}; now: {read_votes(feedback)}). To learn from the new feedback, "
            f"choose another --output; to continue with the old one, pass --feedback {output / FEEDBACK_FILE}"
        )


def _check_same_config(stage: Stage) -> None:
    """Refuse a stage whose run was started with another config. A comparison trains nothing, and is made again."""
    if stage.name == COMPARISON or not stage.config_file.exists() or not (stage.folder / CONFIG_FILE).exists():
        return
    if changed := changes(load_yaml(stage.config_file), stage.written):
        raise ConfigError(
            f"the stage {stage.name} was started with another config: {changed[0][1]} ({len(changed)} keys differ). "
            f"Pass the same --set and --force, or another --output"
        )


def improve(plan: Plan, compare: Compare) -> Path:
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
                raise ConfigError(
                    f"the reward model ranks {verdict}, which is no better than a coin, and there are no corrections, "
                    f"so nothing can be learned; collect more votes, or pass --force to run PPO anyway"
                )
            _compare(plan, stage, learned, compare)
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
    if code := run_command(train_arguments(stage.config_file, stage.folder, "--resume", "auto")):
        raise RunFolderError(f"the stage {stage.name} ended with exit code {code}; rerun the command to continue")


def _compare(plan: Plan, stage: Stage, learned: str, compare: Compare) -> None:
    assert isinstance(stage.config, TextConfig)
    improvable = plan.improvable
    corrections = improvable.corrections if plan.votes.n_corrections else None
    if not is_complete(stage.folder):
        say(f"Stage {stage.name}")
    compare(stage.config, Path(improvable.model()), Path(improvable.model(learned)), corrections, stage.folder)


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
