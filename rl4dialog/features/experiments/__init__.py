"""Experiments of several runs: sweeps, comparisons, and reproductions."""

from rl4dialog.core.features import Feature

_EARLIER = "rl4dialog.experiments"
_MOVED = (
    *("quality.comparison", "quality.outcomes", "quality.page", "quality.plan", "reproduction"),
    *("sweep.results", "sweep.running", "sweep.space", "sweep.study"),
)
FEATURE = Feature(
    "experiments of several runs: sweeps, comparisons of runs and by a plan, and reproductions",
    commands=f"{__name__}.commands",
    moved={
        **{f"{_EARLIER}.{name}": f"rl4dialog.training.{name}" for name in ("new_config", "own_process", "seeds")},
        **{f"{_EARLIER}.{name}": f"{__name__}.{name}" for name in _MOVED},
        "rl4dialog.runs.identity": f"{__name__}.identity",
        **{f"rl4dialog.runs.report.{name}": f"{__name__}.{name}" for name in ("comparison", "tables")},
    },
    configs=("benchmarks",),
    page=("comparing.md", "cross_play.md"),
)
