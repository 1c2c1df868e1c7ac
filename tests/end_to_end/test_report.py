"""The report at the end of a run."""

from runs import DENSE_REWARD, make_config, trained_run

from rl4dialog.runs.report.pages import write_report


def test_run_leaves_a_report_that_can_be_written_again(tmp_path):
    config = make_config(tmp_path, train_evaluation__n_iters=3, reward_fn=DENSE_REWARD)
    report = trained_run(tmp_path, config) / "report.html"
    page = report.read_text(encoding="utf-8")
    for title in ("KL to the reference", "Entropy", "Policy loss", "Value loss", "Time per phase"):
        assert f"<b>{title}</b>" in page
    assert "Reward parts" not in page, "the reward has a single one"
    assert page.count("<article") == 2 * 6, "of the test split and, with a choice of the evaluation, of the val split"
    assert "lexical/rouge_rouge1" in page.replace("<wbr>", "") and "3 of 3" in page
    report.unlink()
    assert write_report(report.parent) == report
    # The path in the title and all numbers are the same: nothing in it depends on when it was written.
    assert report.read_text(encoding="utf-8") == page
