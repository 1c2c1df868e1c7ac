"""Plan of a comparison: a YAML file with the steps before the runs, the runs, and the metrics of the page.

Its rows are recipes. They are compared in one world each, that of their config, or all in the same worlds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from rl4dialog.core.cache import content_hash
from rl4dialog.core.config import RunConfig, load_config
from rl4dialog.core.config_blocks import Block, ComponentConfig
from rl4dialog.core.errors import ConfigError, RunFolderError, nearest_hint, validation_message
from rl4dialog.core.yaml_loader import apply_overrides, load_yaml
from rl4dialog.runs.run_folder import is_complete
from rl4dialog.training.building.components import import_and_check
from rl4dialog.training.checkpoint import is_done

OUTPUT, SEED, WORLD, EACH = "{output}", "{seed}", "{world}", "{each}"
"""Stand for the output folder, for a run's seed and world, and for the values of a step's ``for_each``."""


class Step(Block):
    """A command before the runs; with ``{seed}`` or ``{world}`` in it, one for each that the runs have."""

    command: list[str] = Field(min_length=1)
    """Arguments of ``rl4dialog``, such as ``[classifier, --output_dir, "{output}/judge"]``."""
    creates: str
    """A file or folder that the step creates; the step is skipped if it exists."""
    for_each: list[int | str] | None = Field(default=None, min_length=1)
    """Values of ``{each}``, one command for each."""
    worlds: list[str] | None = None
    """Worlds that need it. Default: all."""

    @model_validator(mode="after")
    def _each_creates_its_own(self) -> Step:
        if (self.for_each is None) == (EACH in self.creates):
            raise ValueError(f"creates: it must have {EACH} if the step has 'for_each', and only then")
        return self

    @property
    def commands(self) -> list[list[str]]:
        """``creates`` and the command, for each value of ``for_each``."""
        texts = [self.creates, *self.command]
        return [[text.replace(EACH, str(value)) for text in texts] for value in self.for_each or [EACH]]


class _WithSeeds(Block):
    seeds: list[int] | None = Field(default=None, min_length=1)
    """Seeds, one run for each."""

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int] | None) -> list[int] | None:
        if seeds is not None and len(set(seeds)) < len(seeds):
            raise ValueError(f"a seed is listed twice: {seeds}")
        return seeds


class World(Block):
    """A task in which every row is trained."""

    config: str
    """Config file, relative to the plan."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of the config, before those of the rows."""
    metric: str
    """Metric by which the rows are compared, such as ``conversation/success``."""
    ceiling: float | None = None
    """What the best scripted player reaches in this metric."""
    level: float | None = None
    """A value of the metric; the page says after how many tokens it is reached."""


class Group(_WithSeeds):
    """A row: runs of one config with several seeds, or of one recipe with several seeds in every world."""

    config: str | None = None
    """Config file, relative to the plan; with worlds, they have it."""
    adds_to: str | None = None
    """An earlier row, whose overrides come before those of this one."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of the config, such as ``alg.args.n_epochs=1``."""
    of_worlds: dict[str, list[str]] = Field(default_factory=dict, alias="set_in")
    """More overrides, in one world only: lists by world."""
    worlds: list[str] | None = None
    """Worlds of this row. Default: all."""


class WinRate(Block):
    """Comparison of each test sample after training with the same one before it."""

    score: str
    """Metric key of the score. Use a metric that is not part of the reward."""
    length: str
    """Metric key of the length that is held equal, such as ``conversation/words``."""


BEFORE = "before training"
"""In comparisons, the runs of the other row at their start."""


class CrossPlayPlan(Block):
    """Conversations of agents with partners whom they met in training, and with others."""

    partners: dict[str, ComponentConfig] = Field(min_length=2)
    """Partners by name, such as ``{id: language_model, args: {model_name: "{output}/runs/..."}}``.

    ``{world}`` in them stands for the world of the agents."""
    agents: dict[str, list[str]] = Field(default_factory=dict)
    """More agents besides the rows of the plan: folders of complete runs, one for each seed, by label."""
    met: dict[str, list[str]] = Field(default_factory=dict)
    """Partners that an agent met in training, by its label. Default: those in the configs of its runs."""
    trust: bool = False
    """Whether the code that configs of other agents execute is allowed; see ``--trust``."""
    splits: list[Literal["train", "val", "test"]] = Field(default=["test"], min_length=1)
    """Splits about whose samples they talk."""
    seeds: list[int] = Field(default=[0], min_length=1)
    """Seeds of the conversations about each sample, whose mean counts."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of the configs of all runs in these conversations."""

    @model_validator(mode="after")
    def _names_are_known(self) -> CrossPlayPlan:
        for label, names in self.met.items():
            _check_names(f"cross_play.met.{label}", names, self.partners)
        if wrong := [name for name in self.partners if not re.fullmatch(r"[\w.-]+", name)]:
            raise ValueError(f"cross_play.partners: {wrong[0]!r} must have only letters, digits, '.', '-' and '_'")
        return self


class QualityPlan(_WithSeeds):
    """Plan of a comparison."""

    title: str
    """Heading of the page."""
    about: str = ""
    """First paragraph of the page."""
    steps: dict[str, Step] = Field(default_factory=dict)
    """Commands before the runs, in order, by name."""
    worlds: dict[str, World] = Field(default_factory=dict)
    """Tasks in which all rows are trained, by name. Default: each row has a config of its own."""
    runs: dict[str, Group] = Field(default_factory=dict)
    """Rows by label, such as an algorithm's name. All start from the same model."""
    cross_play: CrossPlayPlan | None = None
    """Conversations of the rows, and of other agents, with several partners."""
    overrides: list[str] = Field(default_factory=list, alias="set")
    """Overrides of all configs."""
    metrics: dict[str, str] = Field(min_length=1)
    """Metrics of the page: label by metric key. Without worlds, the rows are compared by the first one."""
    win_rate: WinRate | None = None
    """Score whose win rate against the start is on the page."""
    reference: str | None = None
    """Row from which the differences of all others are measured. Default: the first one."""
    comparisons: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    """Pairs of rows or agents that are compared, fixed before any result is seen: ``[[PPO, RLOO], ...]``.

    The second one may be ``before training``, the runs of the first one at their start."""
    pools_worlds: bool = False
    """Whether comparisons and cross-play are about all worlds together, whose metrics must be the same."""
    outcomes: str | None = None
    """JSON file with the numbers of every run, for git, relative to the working directory. Runs in it are not repeated.
    Default: ``outcomes.json`` in the output folder, written from the run folders there.
    """
    notes: list[str] = Field(default_factory=list)
    """Paragraphs after the tables."""

    @model_validator(mode="after")
    def _rows_fit(self) -> QualityPlan:
        earlier: list[str] = []
        if not self.runs and (self.cross_play is None or not self.cross_play.agents):
            raise ValueError("runs is missing; it needs at least one row, or cross_play.agents")
        if self.cross_play is not None and self.worlds and not self.pools_worlds:
            raise ValueError("cross_play has the samples of all worlds, which needs 'pools_worlds: true'")
        if self.pools_worlds and len(metrics := {world.metric for world in self.worlds.values()}) != 1:
            raise ValueError(
                f"pools_worlds needs worlds with the same metric, not {', '.join(sorted(metrics)) or 'none'}"
            )
        for name, step in self.steps.items():
            _check_names(f"steps.{name}.worlds", step.worlds or [], self.worlds)
        agents = [*self.runs, *(self.cross_play.agents if self.cross_play else [])]
        if BEFORE in self.runs:
            raise ValueError(f"runs: {BEFORE!r} names the runs of the other row at their start; rename the row")
        for label, row in self.runs.items():
            where = f"runs.{label}"
            if bool(self.worlds) == (row.config is not None):
                right = "remove it: the worlds have configs" if self.worlds else "set it, or the plan's 'worlds'"
                raise ValueError(f"{where}.config: {right}")
            if (row.seeds or self.seeds) is None:
                raise ValueError(f"{where}.seeds is missing; set it, or 'seeds' of the plan")
            if row.adds_to is not None:
                _check_names(f"{where}.adds_to", [row.adds_to], earlier)
            _check_names(f"{where}.set_in", row.of_worlds, self.worlds)
            _check_names(f"{where}.worlds", row.worlds or [], self.worlds)
            earlier.append(label)
        _check_names("reference", [self.reference or agents[0]], agents)
        for ours, others in self.comparisons:
            _check_names("comparisons", [ours] if others == BEFORE else [ours, others], agents)
        return self

    @property
    def compared_in(self) -> dict[str, World]:
        """The worlds; of a plan without any, a nameless one, in which each row has its own config."""
        return self.worlds or {"": World(config="", metric=next(iter(self.metrics)))}

    def overrides_of(self, label: str, world: str = "") -> list[str]:
        """Overrides of a row in a world, in order."""
        row = self.runs[label]
        before = [] if row.adds_to is None else self.overrides_of(row.adds_to, world)
        return [*before, *row.overrides, *row.of_worlds.get(world, [])]

    def seeds_of(self, label: str) -> list[int]:
        return self.runs[label].seeds or self.seeds or []


def _check_names(key: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{key}: {name!r} is none of {', '.join(known) or 'them'}{nearest_hint(name, known)}")


Plan = TypeVar("Plan", bound=QualityPlan)


def _keys(*blocks: type[Block]) -> list[str]:
    return [field.alias or name for block in blocks for name, field in block.model_fields.items()]


class PlannedRun:
    """One run of a plan; ``name`` is that of its folder, and ``config`` is resolved.

    ``config_hash`` tells configs apart by what they set, other than how fast they run; a new key with a default changes
    no hash, and neither does the output folder.
    """

    def __init__(
        self, label: str, seed: int, config_path: Path, overrides: list[str], output: Path, world: str = ""
    ) -> None:
        self.label, self.seed, self.config_path, self.world = label, seed, config_path, world
        self.key = world, label, seed
        each = [*filled(overrides, output, seed, world), f"seed={seed}"]
        # A row replaces what an earlier one or the world sets; the command takes a key once.
        last = {text.partition("=")[0]: i for i, text in enumerate(each)}
        self.overrides = [each[i] for i in sorted(last.values())]
        named = f"{world}_{label}" if world else label
        self.name = f"{''.join(c if c.isalnum() else '_' for c in named.lower())}_seed_{seed}"
        self.config: RunConfig = load_config(config_path, self.overrides)
        set_to = self.config.model_dump(
            mode="json", exclude_defaults=True, exclude={"logging": True, "env": {"vec_env", "n_workers"}}
        )
        self.config_hash = content_hash([json.dumps(set_to, sort_keys=True).replace(str(output), OUTPUT)])[:16]

    def check(self) -> None:
        """Load the config's imports, and check all its components."""
        try:
            import_and_check(self.config, self.config_path)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    def is_done(self, folder: Path) -> bool:
        """Whether a folder has this run, and it is complete; a ``ConfigError`` if that has another config."""
        if not is_complete(folder):
            return False
        self.check()  # which adapts the config to another algorithm, as the command does
        with suppress(RunFolderError):  # its config cannot be read, which the command will say
            return is_done(folder, self.config)
        return False


def load_plan(path: str | Path, overrides: list[str], schema: type[Plan] = QualityPlan) -> Plan:  # type: ignore[assignment]
    """Read a plan from a YAML file, with overrides such as ``runs.PPO.seeds=[0]``; the schema has its keys."""
    content = apply_overrides(load_yaml(path), overrides)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        keys = _keys(schema), _keys(Group, World, Step, WinRate, CrossPlayPlan)  # of the plan, and of its blocks
        found = (
            validation_message([problem], content, keys[len(problem["loc"]) > 1]).lstrip(".: ")
            for problem in error.errors()
        )
        raise ConfigError(f"{path}: {'; '.join(found)}") from error


def planned_runs(plan: QualityPlan, path: str | Path, output: Path) -> list[PlannedRun]:
    """All runs of a plan, with their configs checked; the first seeds of all rows come first."""
    folder, runs = Path(path).parent, []
    for i in range(max(map(len, map(plan.seeds_of, plan.runs)), default=0)):
        for world, place in plan.compared_in.items():
            for label, row in plan.runs.items():
                if i >= len(plan.seeds_of(label)) or (row.worlds is not None and world not in row.worlds):
                    continue
                config = folder / (row.config or place.config)
                overrides = [*plan.overrides, *place.overrides, *plan.overrides_of(label, world)]
                if any(text.startswith("seed=") for text in overrides):
                    raise ConfigError(
                        f"{path}: set: seed has no effect, because each run has one of its seeds; remove it"
                    )
                runs.append(PlannedRun(label, plan.seeds_of(label)[i], config, overrides, output, world))
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        labels = ", ".join([*plan.worlds, *plan.runs])
        raise ConfigError(f"{path}: the labels {labels} give several runs the same folder; rename one")
    same: dict[str, PlannedRun] = {}
    for run in runs:
        if (other := same.setdefault(run.config_hash, run)) is not run:
            raise ConfigError(f"{path}: {other.name} and {run.name} have the same config; change or remove one")
    return runs


def filled(texts: Sequence[str], output: Path, seed: int | str = SEED, world: str = WORLD) -> list[str]:
    """Texts with the output folder, a seed and a world in place of :data:`OUTPUT`, :data:`SEED` and :data:`WORLD`."""
    return [text.replace(OUTPUT, str(output)).replace(SEED, str(seed)).replace(WORLD, world) for text in texts]
