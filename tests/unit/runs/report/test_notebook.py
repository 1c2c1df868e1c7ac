"""Curves and conversations of a run in a notebook."""

import pytest
from run_files import game, write_json, write_run

import rl4dialog
from rl4dialog.core.errors import DataError


def test_curves_are_a_picture(tmp_path):
    run = write_run(tmp_path / "e")
    assert rl4dialog.show_curves(run)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(DataError, match=r"has no train/los; logged numbers: .*train/entropy_loss"):
        rl4dialog.show_curves(run, "train/los")


def test_replies_and_conversations_are_shown_before_and_after(tmp_path):
    run = write_run(tmp_path / "e")
    shown = rl4dialog.show_conversations(run, n=1)._repr_html_()
    assert shown.count("reply") == 2 and "before training" in shown and "after training" in shown
    for epoch in (0, 3):
        talk = game(0, ("Is it <red>?", "no"), won=bool(epoch))
        write_json(run / f"epoch_{epoch}_test_split_predictions.json", [talk])
    shown = rl4dialog.show_conversations(run)._repr_html_()
    assert shown.count("Is it &lt;red&gt;?") == 2 and shown.count(">no<") == 2
    with pytest.raises(DataError, match="has no evaluation of the val split"):
        rl4dialog.show_conversations(run, split="val")
