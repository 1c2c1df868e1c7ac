"""Pictures of a run, drawn from its files."""

from __future__ import annotations

import json
from pathlib import Path

from rl4dialog.training.run_folder import CONFIG_FILE, ROLLOUT_INFO_FILE


def plot_reward_curve(run_path: str | Path, output_png: str | Path) -> None:
    """Draw the task reward and the KL to the reference over the iterations.

    Args:
        run_path: A run folder with ``rollout_info.jsonl``.
        output_png: The picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    run_path = Path(run_path)
    rows = [json.loads(line) for line in (run_path / ROLLOUT_INFO_FILE).read_text(encoding="utf-8").splitlines()]
    config = json.loads((run_path / CONFIG_FILE).read_text(encoding="utf-8"))
    target = ((config.get("alg") or {}).get("kl_div") or {}).get("target_kl")
    iterations = [row["iteration"] for row in rows]

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    reward_axes, kl_axes = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    reward_axes.plot(iterations, [row["rollout/task_reward"] for row in rows], color="tab:blue")
    reward_axes.set_ylabel("task reward per episode")
    reward_axes.grid(alpha=0.3)
    kl_axes.plot(iterations, [row["rollout/kl"] for row in rows], color="tab:orange", label="mean KL per token")
    if target is not None:
        kl_axes.axhline(target, color="gray", linestyle="--", label="target")
    kl_axes.set_ylabel("nats")
    kl_axes.set_xlabel("iteration")
    kl_axes.legend(loc="best", frameon=False)
    kl_axes.grid(alpha=0.3)
    figure.savefig(output_png, dpi=120)
