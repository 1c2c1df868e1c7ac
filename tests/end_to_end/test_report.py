"""The report at the end of a run, and the command that writes it again."""

import re

from runs import DENSE_REWARD, make_config, run_folder, train, trained_run

from rl4dialog import cli


def test_run_leaves_a_report_and_the_command_writes_it_again(tmp_path, capsys, monkeypatch):
    config = make_config(tmp_path, train_evaluation__n_iters=3, reward_fn=DENSE_REWARD)
    report = trained_run(tmp_path, config) / "report.html"
    page = report.read_text(encoding="utf-8")
    for title in ("KL to the reference", "Entropy", "Policy loss", "Value loss", "Time per phase"):
        assert f"<b>{title}</b>" in page
    assert "Reward parts" not in page, "the reward has a single one"
    assert page.count("<article") == 2 * 6, "of the test split and, with a choice of the evaluation, of the val split"
    assert "lexical/rouge_rouge1" in page.replace("<wbr>", "") and "3 of 3" in page
    report.unlink()
    capsys.readouterr()
    assert cli.main(["report", str(run_folder(tmp_path))]) == 0
    assert capsys.readouterr().out.strip() == str(report)
    # The path in the title and all numbers are the same: nothing in it depends on when it was written.
    assert report.read_text(encoding="utf-8") == page

    monkeypatch.chdir(tmp_path)
    assert train(tmp_path, {**config, "seed": 1}, "--experiment_name", "f") == 0
    assert cli.main(["report", str(run_folder(tmp_path)), str(run_folder(tmp_path).parent / "f")]) == 0
    comparison = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "<td>0, 1</td>" in comparison and "Config differences" not in comparison
    assert len(re.findall("<svg", comparison)) > 10
