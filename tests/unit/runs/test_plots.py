"""Pictures of a run."""

import errno
import math
import os

import pytest
from matplotlib.figure import Figure
from plot_comparison import plot_comparison, plot_evaluations
from run_files import write_json, write_lines

from rl4dialog.core.errors import DataError
from rl4dialog.runs.plots import plot_reward_curve, plot_reward_curve_or_warn, smooth


def write_run(folder, n=5, config=None, **overrides):
    numbers = range(1, n + 1)
    rows = [{"iteration": i, "rollout/task_reward": 0.1 * i, "rollout/kl": 0.01 * i, **overrides} for i in numbers]
    write_lines(folder / "rollout_info.jsonl", rows)
    write_json(folder / "config.json", config or {"alg": {"kl_div": {"target_kl": 0.07}}})
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []
    save = Figure.savefig

    def savefig(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def test_picture_has_reward_and_kl_with_its_target(tmp_path, drawn):
    plot_reward_curve(write_run(tmp_path), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    reward_axes, kl_axes = drawn[0].axes
    assert list(reward_axes.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert list(reward_axes.lines[0].get_ydata()) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert list(kl_axes.lines[0].get_ydata()) == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert list(kl_axes.lines[1].get_ydata()) == [0.07, 0.07]
    assert all(axes.get_ylabel() for axes in drawn[0].axes)
    assert kl_axes.get_xlabel() == "iteration"


def test_run_without_a_reference_has_no_kl(tmp_path, drawn):
    rows = [{"iteration": i, "rollout/task_reward": float(i)} for i in range(1, 4)]
    write_lines(tmp_path / "rollout_info.jsonl", rows)
    plot_reward_curve(tmp_path, tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    assert list(axes.lines[0].get_ydata()) == [1, 2, 3] and axes.get_xlabel() == "iteration"
    with pytest.raises(DataError, match="dqn has no agent tokens to plot over"):
        plot_comparison({"dqn": [tmp_path]}, tmp_path / "picture.png")


@pytest.mark.usefixtures("reward_curve")
def test_picture_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog):
    def full(figure, *args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Figure, "savefig", full)
    plot_reward_curve_or_warn(write_run(tmp_path), tmp_path / "curve.png")
    assert "curve.png could not be written: [Errno 28] No space left on device" in caplog.text


def test_long_run_has_a_smoothed_line_over_the_raw_one(tmp_path, drawn):
    plot_reward_curve(write_run(tmp_path, n=60), tmp_path / "curve.png")
    raw, smoothed = drawn[0].axes[0].lines
    assert len(raw.get_xdata()) == len(smoothed.get_xdata()) == 60
    assert raw.get_alpha() is not None and raw.get_linewidth() < smoothed.get_linewidth()


def test_smoothing_is_a_centred_mean_that_leaves_nan_out():
    assert smooth([0.0, 3.0, 6.0, math.nan, 12.0], 3) == [1.5, 3.0, 4.5, 9.0, 12.0]


@pytest.mark.parametrize("config", [{"alg": {}}, {"alg": {"kl_div": {"target_kl": None}}}, {"alg": None}])
def test_run_without_a_target_is_drawn_without_it(tmp_path, drawn, config):
    plot_reward_curve(write_run(tmp_path, config=config), tmp_path / "curve.png")
    assert len(drawn[0].axes[1].lines) == 1


def test_missing_or_empty_rollouts_are_an_error(tmp_path):
    with pytest.raises(DataError, match="is not a run folder"):
        plot_reward_curve(tmp_path, tmp_path / "curve.png")
    (tmp_path / "rollout_info.jsonl").write_text("\n")
    with pytest.raises(DataError, match="there is nothing to plot"):
        plot_reward_curve(tmp_path, tmp_path / "curve.png")


def test_comparison_draws_every_kind_with_a_band_over_its_runs(tmp_path):
    runs = {}
    for kind in ("one", "other"):
        for seed in range(2):
            folder = tmp_path / f"{kind}_{seed}"
            folder.mkdir()
            runs.setdefault(kind, []).append(write_run(folder, 25 + seed, **{"rollout/tokens": 100 + seed}))
    plot_comparison(runs, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="is not a folder"):
        plot_comparison({"one": [tmp_path / "none"]}, tmp_path / "picture.png")
    with pytest.raises(DataError, match="no runs"):
        plot_comparison({"one": []}, tmp_path / "picture.png")


def write_evaluations(folder, values, every=5):
    folder.mkdir()
    rows = [{"epoch": i * every, "metrics": {"game/return": value}} for i, value in enumerate(values)]
    write_lines(folder / "val_split_metrics.jsonl", rows)
    return folder


def test_evaluations_of_groups_have_a_mean_and_a_band(tmp_path, drawn):
    runs = {"a": [write_evaluations(tmp_path / f"a{i}", [0.0, float(i)]) for i in (1, 3)]}
    plot_evaluations({**runs, "b": [write_evaluations(tmp_path / "b", [1.0, 1.0])]}, "game/return", tmp_path / "c.png")
    (axes,) = drawn[0].axes
    mean, other = axes.lines
    assert list(mean.get_xdata()) == [0, 5] and list(mean.get_ydata()) == [0, 2] and list(other.get_ydata()) == [1, 1]
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.ymin, band.ymax) == (0, 3)
    assert "game/return" in axes.get_ylabel() and [text.get_text() for text in axes.get_legend().texts] == ["a", "b"]


def test_evaluations_that_do_not_fit_are_refused(tmp_path):
    one, other = write_evaluations(tmp_path / "one", [0.0, 1.0]), write_evaluations(tmp_path / "other", [0.0, 1.0], 7)
    with pytest.raises(DataError, match=r"/one has no metric 'return' of val; it has game/return"):
        plot_evaluations({"a": [one]}, "return", tmp_path / "c.png")
    with pytest.raises(DataError, match="the runs of a were evaluated after different iterations"):
        plot_evaluations({"a": [one, other]}, "game/return", tmp_path / "c.png")
    with pytest.raises(DataError, match="is not a folder"):
        plot_evaluations({"a": [tmp_path / "none"]}, "game/return", tmp_path / "c.png")
