"""Cross-play: agents talk with partners whom they met in training and with others, about the same samples and seeds.

After "matrices of agents x simulators" (Shi et al. 2019, arXiv 1909.01388): a policy that holds only with the partner
of its training has learned this partner.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.cache import content_hash
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError, nearest_hint
from rl4dialog.core.files import file_hash, write_json
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.features.experiments.quality.plan import CrossPlayPlan, filled
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.runs.reading import Predictions, read_predictions
from rl4dialog.runs.report.metrics import mean_estimate, sample_estimate, student_interval
from rl4dialog.runs.run_folder import CONFIG_FILE, is_complete
from rl4dialog.training.own_process import Command, run_all

FOLDER, NUMBERS_FILE, HEATMAP_FILE = "cross_play", "cross_play.json", "cross_play.png"
Scores = NDArray[np.float64]  # of conversations, by run and sample. Shape (runs, samples)
MEANS = ("met", "never met", "gap")


@dataclass
class CrossPlay:
    """Scores of each agent with each partner, by metric, and the partners that the agents met in training."""

    partners: list[str]
    scores: dict[str, dict[str, dict[str, Scores]]] = field(default_factory=dict)  # by metric, agent and partner
    met: dict[str, list[str]] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)  # of agents that are not in all worlds
    sample_ids: dict[str, list[str]] = field(default_factory=dict)  # by split, of one world, in the order of the scores

    def label(self, agent: str) -> str:
        return f"{agent} {self.where[agent]}" if agent in self.where else agent

    def estimates(self, metric: str, agent: str) -> dict[str, Estimate]:
        """The means with each partner, with all that it met and never met, and how much less it reaches with these."""
        own = self.scores[metric][agent]
        met = _mean([own[name] for name in own if name in self.met[agent]] or [[[np.nan]]])
        others = _mean([own[name] for name in own if name not in self.met[agent]] or [[[np.nan]]])
        both = dict(zip(MEANS, (met, others, met - others), strict=True))
        return {name: estimate(scores) for name, scores in {**own, **both}.items()}

    def differences(self, metric: str, agent: str, reference: str) -> dict[str, Estimate]:
        """How much more it reaches with each partner than another agent about the same samples, with the same seeds."""
        ours, others = self.scores[metric][agent], self.scores[metric][reference]
        found = {}
        for name in ours:
            one, other = ours[name], others[name]
            if len(one) != len(other):
                one, other = _mean(one)[None], _mean(other)[None]
            found[name] = estimate(one - other, are_differences=True)
        return found


def _mean(values: Any, axis: int = 0) -> Scores:
    """The mean without NaN; NaN of nothing."""
    found: Scores = np.ma.masked_invalid(values).mean(axis).filled(np.nan)
    return found


def estimate(scores: Scores, are_differences: bool = False) -> Estimate:
    """The mean, with an interval over samples or, of several runs, over runs and samples, whose variances are added."""
    if len(scores) == 1:
        return sample_estimate(scores[0], are_differences)
    by_run, by_sample = _mean(scores, axis=1), _mean(scores)
    value = mean_estimate(by_run).value
    return Estimate(value, student_interval(value, by_run, by_sample))


@dataclass
class Agents:
    """Runs of the agents of a world, by label, and what the plan says about their conversations."""

    plan: CrossPlayPlan
    runs: Mapping[str, Sequence[Path]]
    output: Path
    world: str = ""

    def places(self, run: Path) -> dict[tuple[str, str, int], Path]:
        """Folders of a run's conversations by partner, split and seed; they depend on all that these depend on."""
        found = {}
        for name in self.plan.partners:
            chosen = self.partner(name)
            model = Path(str(chosen.args.get("model_name", ""))).expanduser()
            results = [place / "result.json" for place in (run, model)]
            about = [str(run), *(file_hash(path) for path in results if path.is_file()), chosen.model_dump_json()]
            for split, seed in itertools.product(self.plan.splits, self.plan.seeds):
                key = content_hash([*about, *self.plan.overrides, split, str(seed)])[:12]
                found[name, str(split), seed] = self.output / FOLDER / f"{run.name}_{key}" / name
        return found

    def partner(self, name: str) -> ComponentConfig:
        (text,) = filled([self.plan.partners[name].model_dump_json()], self.output, world=self.world)
        return ComponentConfig.model_validate_json(text)

    def met(self, agent: str) -> list[str]:
        """Partners that an agent met in training, by default those that its first run names as its own."""
        if agent in self.plan.met:
            return self.plan.met[agent]
        config = load_yaml(self.runs[agent][0] / CONFIG_FILE)
        given = ((config.get("env") or {}).get("args") or {}).get("partner") or {}
        several = (given.get("args") or {}).get("partners", [given])
        own = [(each.get("id"), each.get("args") or {}) for each in several]
        found = {name: self.partner(name) for name in self.plan.partners}
        return [name for name, each in found.items() if (each.id, each.args) in own]


def play(agents: Agents, n_jobs: int) -> dict[str, int]:
    """Hold the conversations of agents with all partners, unless they are there; see `run_all`."""
    commands, plan = {}, agents.plan
    for agent, folders in agents.runs.items():
        for number, run in enumerate(folders):
            for (partner, split, seed), place in agents.places(run).items():
                if (place / "metrics.json").is_file():
                    continue
                chosen = json.dumps(agents.partner(partner).model_dump(exclude_defaults=True))
                # The seed is the same for all agents, so that partners draw the same.
                sets = [f"seed={seed}", *plan.overrides, "train_evaluation.partner=null", f"env.args.partner={chosen}"]
                flags = [text for each in sets for text in ("--set", each)]
                flags += ["--trust"] if plan.trust or run.is_relative_to(agents.output) else []
                command = ["evaluate", "--run", str(run), "--split", split, *flags, "--output_path", str(place)]
                place.parent.mkdir(parents=True, exist_ok=True)
                name = f"{agents.world} {agent} {number} with {partner}, {split} {seed}".strip()
                commands[name] = Command(command, place.with_name(f"{place.name}.log"))
    return run_all(commands, n_jobs)


def read(agents: Agents, metrics: Sequence[str]) -> CrossPlay:
    """Read the conversations of agents that are complete with all partners."""
    plan = agents.plan
    found = CrossPlay([*plan.partners], {metric: {} for metric in metrics})
    for agent, folders in agents.runs.items():
        places = [agents.places(run) for run in folders]
        if not places or not all((place / "metrics.json").is_file() for each in places for place in each.values()):
            continue
        held = [{key: _conversations(place) for key, place in each.items()} for each in places]
        for (_, split, _), each in (item for of_run in held for item in of_run.items()):
            if each.sample_ids != found.sample_ids.setdefault(split, each.sample_ids):
                raise DataError(f"cross_play: agent {agent!r} has other samples than the first; their datapools differ")
        for metric in metrics:
            found.scores[metric][agent] = {
                name: np.array([_by_sample(plan, name, of_run, metric) for of_run in held]) for name in plan.partners
            }
        found.met[agent] = agents.met(agent)
    return found


def _by_sample(
    plan: CrossPlayPlan, partner: str, held: Mapping[tuple[str, str, int], Predictions], metric: str
) -> Scores:
    """Means over seeds, of the samples of all splits."""
    of_splits = [[_scores(held[partner, split, seed], metric) for seed in plan.seeds] for split in plan.splits]
    return np.concatenate([_mean(each) if len(each) > 1 else each[0] for each in of_splits])


def pooled(worlds: Sequence[CrossPlay]) -> CrossPlay:
    """The samples of several worlds, one after another; NaN in worlds where an agent has no runs."""
    found = CrossPlay(worlds[0].partners)
    for agent, met in (item for world in worlds for item in world.met.items()):
        if found.met.setdefault(agent, met) != met:
            raise ConfigError(f"cross_play.met.{agent}: the agent met other partners in another world; name them alike")
        if (n := sum(agent in world.met for world in worlds)) < len(worlds):
            found.where[agent] = f"({n} of {len(worlds)} worlds)"
    for metric in worlds[0].scores:
        of_worlds = [world.scores[metric] for world in worlds]
        n_samples = [next(iter(next(iter(each.values())).values())).shape[1] for each in of_worlds]
        found.scores[metric] = {agent: {} for agent in found.met}
        for agent, name in itertools.product(found.met, found.partners):
            parts = [
                each[agent][name] if agent in each else np.empty((0, n))
                for each, n in zip(of_worlds, n_samples, strict=True)
            ]
            n_runs = max(map(len, parts))
            rows = [np.pad(part, ((0, n_runs - len(part)), (0, 0)), constant_values=np.nan) for part in parts]
            found.scores[metric][agent][name] = np.concatenate(rows, axis=1)
    return found


def _conversations(place: Path) -> Predictions:
    found = read_predictions(path := place / "predictions.json")
    if found is None:
        raise DataError(f"cross_play: {path} is truncated; remove its folder to hold the conversations again")
    return found


def _scores(found: Predictions, metric: str) -> Scores:
    if metric not in found.scores:
        raise ConfigError(f"cross_play: conversations have no {metric!r}{nearest_hint(metric, found.scores)}")
    return found.scores[metric]


def agents_of(plan: CrossPlayPlan, rows: Mapping[str, Sequence[Path]], output: Path, world: str = "") -> Agents:
    """The agents of a world: the plan's rows, and others."""
    own = {label: [*folders] for label, folders in rows.items() if folders}
    for label, folders in plan.agents.items():
        own[label] = [Path(text).expanduser().absolute() for text in filled(folders, output, world=world)]
        if missing := [folder for folder in own[label] if not is_complete(folder)]:
            raise RunFolderError(f"cross_play.agents.{label}: {missing[0]} is no complete run")
    return Agents(plan, own, output, world)


def write_numbers(found: CrossPlay, path: Path) -> None:
    """Write all estimates as JSON."""
    numbers = {metric: {agent: found.estimates(metric, agent) for agent in own} for metric, own in found.scores.items()}
    write_json(path, {"partners": found.partners, "met": found.met, "estimates": numbers})


def plot_heatmap(found: CrossPlay, metric: str, png: Path) -> None:
    """Plot the means of a metric, agents by partners; those met in training have a frame."""
    agents = [*found.scores[metric]]
    values = np.array([[found.estimates(metric, a)[p].value for p in found.partners] for a in agents])
    figure, (axes,) = plain_figure(1.4 * len(found.partners) + 2.5, 0.6 * len(agents) + 1.4)
    axes.grid(False)
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    middle = np.nanmean([np.nanmin(values), np.nanmax(values)])
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value < middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color)
        if found.partners[column] in found.met[agents[row]]:
            frame = (column - 0.48, row - 0.48)
            axes.add_patch(type(axes.patch)(frame, 0.96, 0.96, fill=False, edgecolor="red", linewidth=2))
    axes.set_xticks(range(len(found.partners)), found.partners, rotation=20, ha="right")
    axes.set_yticks(range(len(agents)), map(found.label, agents))
    figure.colorbar(image, label=metric)
    save_figure(figure, png)
