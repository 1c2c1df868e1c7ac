"""Experiments of several runs: sweeps, comparisons by a plan, and reproductions."""

from rl4dialog.core.features import Feature

_QUALITY, _SWEEP = ("comparison", "outcomes", "page", "plan"), ("results", "running", "space", "study")
FEATURE = Feature(
    "experiments of several runs: sweeps, comparisons by a plan, and reproductions",
    commands=f"{__name__}.commands",
    moved={
        "rl4dialog.experiments.new_config": "rl4dialog.training.new_config",
        "rl4dialog.experiments.own_process": "rl4dialog.training.own_process",
        "rl4dialog.experiments.reproduction": f"{__name__}.reproduction",
        "rl4dialog.experiments.seeds": "rl4dialog.training.seeds",
        **{f"rl4dialog.experiments.quality.{name}": f"{__name__}.quality.{name}" for name in _QUALITY},
        **{f"rl4dialog.experiments.sweep.{name}": f"{__name__}.sweep.{name}" for name in _SWEEP},
    },
    configs=("benchmarks",),
    page="comparing.md",
)
