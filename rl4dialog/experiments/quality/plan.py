"""Plan of a comparison: a YAML file with the steps before the runs, the runs, and the metrics of the page."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError, field_validator

from rl4dialog.core.config import RunConfig, load_config
from rl4dialog.core.config_blocks import Block
from rl4dialog.core.errors import ConfigError, validation_message
from rl4dialog.core.yaml_loader import apply_overrides, load_yaml
from rl4dialog.training.building.components import import_and_check

OUTPUT = "{output}"
"""Stands for the output folder, in commands, paths and overrides."""


class Step(Block):
    """A command before the runs."""

    command: list[str] = Field(min_length=1)
    """Arguments of ``rl4dialog``, such as ``[classifier, --output_dir, "{output}/judge"]``."""
    creates: str
    """A file or folder that the step creates; the step is skipped if it exists."""


class Group(Block):
    """Runs of one config with several seeds."""

    config: str
    """Config file, relative to the plan."""
    seeds: list[int] = Field(min_length=1)
    """Seeds, one run for each."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of the config, such as ``alg.args.n_epochs=1``."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"a seed is listed twice: {seeds}")
        return seeds


class WinRate(Block):
    """Comparison of each test sample after training with the same one before it."""

    score: str
    """Metric key of the score. Use a metric that is not part of the reward."""
    length: str
    """Metric key of the length that is held equal, such as ``conversation/words``."""


class QualityPlan(Block):
    """Plan of a comparison."""

    title: str
    """Heading of the page."""
    about: str = ""
    """First paragraph of the page."""
    steps: dict[str, Step] = Field(default_factory=dict)
    """Commands before the runs, in order, by name."""
    runs: dict[str, Group] = Field(min_length=1)
    """Groups of runs by label, such as an algorithm's name. All start from the same model."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of all configs."""
    metrics: dict[str, str] = Field(min_length=1)
    """Metrics of the page: label by metric key. The first two are plotted."""
    win_rate: WinRate | None = None
    """Score whose win rate against the start is on the page."""
    notes: list[str] = Field(default_factory=list)
    """Paragraphs after the tables."""


Plan = TypeVar("Plan", bound=QualityPlan)


def _keys(*blocks: type[Block]) -> list[str]:
    return [field.alias or name for block in blocks for name, field in block.model_fields.items()]


class PlannedRun:
    """One run of a plan; ``name`` is that of its folder, and ``config`` is resolved."""

    def __init__(self, label: str, seed: int, config_path: Path, overrides: list[str]) -> None:
        self.label, self.seed, self.config_path = label, seed, config_path
        self.overrides = [*overrides, f"seed={seed}"]
        self.name = f"{''.join(c if c.isalnum() else '_' for c in label.lower())}_seed_{seed}"
        self.config: RunConfig = load_config(config_path, self.overrides)

    def check(self) -> None:
        """Load the config's imports, and check all its components."""
        try:
            import_and_check(self.config, self.config_path)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error


def load_plan(path: str | Path, overrides: list[str], schema: type[Plan] = QualityPlan) -> Plan:  # type: ignore[assignment]
    """Read a plan from a YAML file, with overrides such as ``runs.PPO.seeds=[0]``; the schema has its keys."""
    content = apply_overrides(load_yaml(path), overrides)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        keys = _keys(schema), _keys(Group, Step, WinRate)  # of the plan, and of its blocks
        found = (
            validation_message([problem], content, keys[len(problem["loc"]) > 1]).lstrip(".: ")
            for problem in error.errors()
        )
        raise ConfigError(f"{path}: {'; '.join(found)}") from error


def planned_runs(plan: QualityPlan, path: str | Path, output: Path) -> list[PlannedRun]:
    """All runs of a plan, with their configs checked; the first seeds of all groups come first."""
    folder = Path(path).parent
    runs = [
        PlannedRun(label, group.seeds[i], folder / group.config, filled([*plan.overrides, *group.overrides], output))
        for i in range(max(len(group.seeds) for group in plan.runs.values()))
        for label, group in plan.runs.items()
        if i < len(group.seeds)
    ]
    names = [run.name for run in runs]
    sets = [*plan.overrides, *(text for group in plan.runs.values() for text in group.overrides)]
    if any(text.startswith("seed=") for text in sets):
        raise ConfigError(f"{path}: set: seed has no effect, because each run has one of its seeds; remove it")
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: the labels {', '.join(plan.runs)} give several runs the same folder; rename one")
    for one, other in combinations(runs, 2):
        if one.config == other.config:
            raise ConfigError(f"{path}: {one.name} and {other.name} have the same config; change or remove one")
    return runs


def filled(texts: list[str], output: Path) -> list[str]:
    """Texts with the output folder in place of :data:`OUTPUT`."""
    return [text.replace(OUTPUT, str(output)) for text in texts]
