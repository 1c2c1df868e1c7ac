"""Runs the stages of an improvement in order. A complete one is not repeated, and an interrupted one is resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rl4dialog.core.config import OnPolicyConfig, TextConfig
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.experiments.improvement.plan import Plan, Stage, write_files
from rl4dialog.experiments.improvement.stage_configs import (
    COMPARISON,
    CORRECTIONS,
    FEEDBACK_FILE,
    POLICY,
    REWARD_MODEL,
)
from rl4dialog.experiments.improvement.votes import Verdict, read_verdict
from rl4dialog.experiments.own_process import run_command
from rl4dialog.runs.report.improvement_report import effects, write_improvement_report
from rl4dialog.runs.results import is_complete
from rl4dialog.runs.run_folder import REPORT_FILE
from rl4dialog.scores.reward_models import KEY as SCORE
from rl4dialog.training.checkpoint import is_done

Compare = Callable[[TextConfig, Path, Path, dict[str, object] | None, Path], None]
"""Compares two models: takes the config of the evaluations, the folders of both models, the arguments of the datapool
of corrections (``None`` if there are none), and the run folder to write.
"""


def improve(plan: Plan, compare: Compare) -> Path:
    """Run what a plan has left to do, and write the report.

    Args:
        plan: The plan.
        compare: Evaluates the model before and after.

    Returns:
        The report.

    Raises:
        ConfigError: If the reward model is no better than a coin, and there is nothing else to learn.
        RunFolderError: If a stage fails, or a file cannot be written.
        SystemExit: If this process was interrupted.
    """
    write_files(plan)
    verdict: Verdict | None = None
    learned: str | None = None  # stage of the latest model
    for stage in plan.stages:
        if stage.name == POLICY and verdict is not None and not verdict.is_good and not plan.force:
            _say(f"The reward model is no better than a coin, so {POLICY} is skipped; --force runs it anyway")
            continue
        if stage.name == COMPARISON:
            if learned is None:
                raise ConfigError(
                    f"the reward model ranks {verdict}, which is no better than a coin, and there are no corrections, "
                    f"so nothing can be learned; collect more votes, or pass --force to run PPO anyway"
                )
            _compare(plan, stage, learned, compare)
            continue
        train_stage(plan, stage)
        if stage.name == REWARD_MODEL:
            verdict = read_verdict(plan.folder(stage), plan.votes)
            _say(f"The reward model ranks {verdict}")
        else:
            learned = stage.name
    result = effects(plan.improvable.output / COMPARISON)
    _say(f"Result: {result}")
    facts = {"result": result, **_facts(plan, verdict, learned)}
    return write_improvement_report(plan.improvable.output / COMPARISON, plan.improvable.output / REPORT_FILE, facts)


def train_stage(plan: Plan, stage: Stage) -> None:
    """Train a stage in its own process, unless it is complete."""
    folder = plan.folder(stage)
    if is_done(folder, stage.config):
        return
    _say(f"Stage {stage.name}")
    output = plan.improvable.output
    arguments = ["train", "--config_path", str(plan.config_file(stage)), "--resume", "auto"]
    arguments += ["--base_path_to_store_results", str(output.parent)]
    arguments += ["--project_name", output.name, "--experiment_name", stage.name]
    code = run_command(arguments)
    if code:
        raise RunFolderError(f"the stage {stage.name} ended with exit code {code}; rerun the command to continue")


def _compare(plan: Plan, stage: Stage, learned: str, compare: Compare) -> None:
    """Compare the run's model with that of the last stage that learned."""
    assert isinstance(stage.config, TextConfig)
    improvable = plan.improvable
    corrections = improvable.corrections if plan.votes.n_corrections else None
    if not is_complete(plan.folder(stage)):
        _say(f"Stage {stage.name}")
    models = Path(improvable.model()), Path(improvable.model(learned))
    compare(stage.config, *models, corrections, plan.folder(stage))


def _facts(plan: Plan, verdict: Verdict | None, learned: str | None) -> dict[str, str]:
    """What the report says at its top."""
    improvable = plan.improvable
    feedback = _from_here(improvable.output / FEEDBACK_FILE)
    facts = {"run": _from_here(improvable.run), "feedback": f"{plan.votes} ({feedback})"}
    if verdict is not None:
        facts["reward model"] = str(verdict)
    trained = {CORRECTIONS: "corrections and old data, without PPO", POLICY: f"{plan.stages[-2].config.alg.id} on the "}
    trained[POLICY] += _reward(plan) + (", after the corrections" if plan.votes.n_corrections else "")
    facts["trained by"] = trained[str(learned)] + (" (--force)" if plan.force else "")
    facts["model"] = _from_here(Path(improvable.model(learned)))
    if plan.has_ppo:
        facts["rewards"] = f"{SCORE} is the score of the reward model; reward is that of the improved run's config"
    return facts


def _from_here(path: Path) -> str:
    """A path as one types it here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _reward(plan: Plan) -> str:
    """What the policy's stage optimizes: the reward model, unless another reward was set."""
    config = plan.stages[-2].config
    reward = config.reward_fn if isinstance(config, OnPolicyConfig) else None
    return "reward model" if reward is None or reward.id == "learned_reward" else f"reward {reward.id}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
