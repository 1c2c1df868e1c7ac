"""Pages of runs."""

import math
import re
from html.parser import HTMLParser

import pytest
from run_files import game, prediction, write_json, write_lines, write_run

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.pages import (
    Warning,
    facts,
    missing,
    run_warnings,
    subtitle,
    write_report,
    write_report_or_warn,
)

LOG = """\
2026-01-02 10:00:00,000 INFO rl4dialog.progress: start
2026-01-02 10:00:05,000 WARNING rl4dialog.training.watch: iteration 7: KL is negative (negative_kl). Do this.
2026-01-02 10:00:06,000 WARNING rl4dialog.data: dropped 3 samples
Traceback (most recent call last):
2026-01-02 10:00:07,000 WARNING rl4dialog.data: dropped 3 samples
2026-01-02 10:00:08,000 WARNING rl4dialog.runs.report.pages: the report of the run could not be written (E: no)
2026-01-02 11:02:00,000 INFO rl4dialog.progress: end
"""
CPU = {"cpu": "Epyc", "torch_threads": 2, "gpus": [], "processes": 1}


def test_state_date_duration_and_device_are_told(tmp_path):
    write_run(tmp_path)
    (tmp_path / "log.txt").write_text(LOG)
    write_json(tmp_path / "provenance.json", {"start_time": "2026-01-02T10:00:00+00:00", "hardware": CPU})
    found = subtitle(read_run(tmp_path), "complete")
    assert found == ["complete", "2 January 2026, 10:00 UTC", "1 h 02 min", "CPU Epyc, 2 threads"]
    write_json(tmp_path / "provenance.json", {"resumed": [{}, {}]})
    assert subtitle(read_run(tmp_path), "stopped") == ["stopped, resumed 2 times", "1 h 02 min, pauses included"]


@pytest.mark.parametrize(
    ("device", "processes", "shown"),
    [("auto", 1, "H100"), ("auto", 4, "4 processes, H100"), ("cpu", 1, "CPU Epyc, 2 threads")],
)
def test_gpu_is_named_if_the_run_used_it(tmp_path, device, processes, shown):
    write_run(tmp_path, alg={"args": {"device": device}})
    hardware = {**CPU, "gpus": [{"name": "H100"}], "processes": processes}
    write_json(tmp_path / "provenance.json", {"hardware": hardware})
    assert subtitle(read_run(tmp_path), "complete") == ["complete", shown]


@pytest.mark.parametrize(
    "provenance",
    [{}, {"resumed": 3, "hardware": {"gpus": 3}}, {"start_time": 3, "hardware": "cpu"}, {"hardware": {"gpus": [1]}}],
)
def test_provenance_of_another_form_is_left_out(tmp_path, provenance):
    write_json(write_run(tmp_path) / "provenance.json", provenance)
    assert subtitle(read_run(tmp_path), "complete")[0] == "complete"


def test_warnings_of_the_checks_come_first_and_each_once(tmp_path):
    write_run(tmp_path)
    (tmp_path / "log.txt").write_text(LOG)
    record = {"iteration": 7, "name": "negative_kl", "message": "KL is negative", "advice": "Do this."}
    write_lines(tmp_path / "warnings.jsonl", [record])
    found = run_warnings(read_run(tmp_path))
    assert found == [Warning("Iteration 7: KL is negative", "Do this."), Warning("dropped 3 samples")]
    (tmp_path / "warnings.jsonl").unlink()
    assert [each.message[:11] for each in run_warnings(read_run(tmp_path))] == ["iteration 7", "dropped 3 s"]


def test_run_without_an_end_is_named(tmp_path):
    run = read_run(write_run(tmp_path))
    running, stopped = (missing(run, "test", state)[0] for state in ("running", "stopped"))
    assert running == "The run is still running; this is its state after iteration 3 of 3."
    assert "it stopped after iteration 3 of 3. To continue it, repeat its command with --resume." in stopped
    assert not missing(run, "test", "complete")
    (tmp_path / "rollout_info.jsonl").unlink()
    (tmp_path / "training_info.jsonl").unlink()
    assert "at its beginning" in missing(read_run(tmp_path), "test", "stopped")[0]


def test_facts_of_a_config_of_another_form_are_left_out(tmp_path):
    run = read_run(write_run(tmp_path, alg="ppo", env=None, datapool=[1], train_evaluation=3))
    assert ("seed", "0") in facts(run) and "algorithm" not in dict(facts(run))


class Elements(HTMLParser):
    """Counts elements, and keeps the text of those that are no script or style."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.links = []
        self.text = ""
        self.feed(page.replace("<wbr>", ""))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        self.text += data + " "


def page_of(folder):
    return Elements(write_report(folder).read_text(encoding="utf-8"))


def test_page_shows_summary_metrics_curves_samples_and_config(tmp_path):
    write_json(write_run(tmp_path) / "provenance.json", {"git": {"commit": "abc", "dirty": False}, "packages": ["x"]})
    page = page_of(tmp_path)
    text = " ".join(page.text.split())
    for shown in (
        *("iterations 3 of 3", "highest task reward 0.300 (iteration 3)", "agent tokens 300"),
        *("m 0.500 1.000 +0.500 d", "No intervals: these need at least 50 prompts.", "d * 7.000 8.000 +1.000"),
        *("* no interval: the metric is not a mean", "Test split, 4 prompts, before training and after 3 iterations"),
        *("time in iterations 15 s", "target 0.05, dashed", "reply 2 at 0", "reply 2 at 3", "good"),
        *(
            "model_name: builtin/tiny-gpt2",
            "git.commit abc",
            "git.dirty false",
            'packages ["x"]',
            "changed replies only",
        ),
    ):
        assert shown in text
    assert page.tags.count("svg") == 3 * (4 + 1), "the panels and the phases over three axes; all lengths are equal"
    assert page.tags.count("article") == 4 and "conversations" not in text
    # It needs nothing outside itself.
    assert all(link.startswith("#") for link in page.links) and page.links
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"url\(\s*['\"]?(?!#)", (tmp_path / "report.html").read_text(encoding="utf-8"))


EVIL = """</li></ol></article><script>alert("x")</script><img src=x onerror=alert(1)> ' " & {{ 7 * 7 }}"""


def test_markup_in_replies_is_text(tmp_path):
    write_run(tmp_path)
    baseline = page_of(tmp_path).tags
    for epoch in (0, 3):
        rows = [{**prediction(i, EVIL, m=1), "prompt_text": EVIL, "ref_text": EVIL} for i in range(4)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    page = page_of(tmp_path)
    assert page.tags.count("script") == baseline.count("script") == 1
    assert page.tags.count("article") == 4 and "img" not in page.tags
    assert page.text.count(EVIL) == 4 * 4, "prompt, reference and two replies of four samples"


def write_games(folder, before, after):
    """The page of a run whose samples are conversations."""
    write_run(folder)
    for epoch, rows in ((0, before), (3, after)):
        write_json(folder / f"epoch_{epoch}_test_split_predictions.json", rows)
    return page_of(folder)


def test_conversations_stand_side_by_side_with_rewards_and_ends(tmp_path):
    scores = {"conversation/return": -0.1, "conversation/turns": 2.0}
    before = [game(i, ("is it red ?", "yes ."), ("", "no ."), reward=-0.05, values=[0.4], **scores) for i in range(3)]
    after = [game(i, ("is it a dog ?", "yes , a dog !"), reward=0.95, won=True, **scores) for i in range(3)]
    page = write_games(tmp_path, before, after)
    text = " ".join(page.text.split())
    assert page.tags.count("article") == 3
    assert (
        "partner: guess 0 before training agent: is it red ? -0.05 V 0.40 partner: yes . "
        "agent: (nothing) -0.05 partner: no . "
        "ended after max_turns; success 0 after 3 iterations agent: is it a dog ? +0.95 partner: yes , a dog ! "
        "ended by the partner; success 1 first prompt and references hello 0 how are you? reference: fine 0" in text
    )
    assert "Test split, 3 conversations" in text and "changed conversations only" in text
    assert "Turns of the agent" not in text, "they are equal in all conversations"
    after[0]["conversation/turns"] = 1.0
    text = write_games(tmp_path, before, after).text
    assert "share of conversations" in text and "Turns of the agent" in text


@pytest.mark.parametrize(
    ("n", "gain", "said"),
    [
        (60, 1, "Training improved reward on 60 test prompts, from 1.500 to 2.500: +1.000 (95 % interval +1.000 to"),
        (60, -1, "Training worsened reward on 60 test prompts, from 1.500 to 0.500: -1.000"),
        (60, 0, "No significant change of reward on 60 test prompts"),
        (60, 3e-9, "No significant change of reward on 60 test prompts, from 1.500 to 1.500: +0.000"),
        (60, math.inf, "No verdict on reward on 60 test prompts, from 1.500 to inf: one of them is unknown or"),
        (60, -math.inf, "No verdict on reward on 60 test prompts, from 1.500 to -inf: one of them is unknown"),
        (60, math.nan, "No verdict on reward on 60 test prompts, from 1.500 to -: one of them is unknown or infinite."),
        (8, 1, "No verdict on reward on 8 test prompts, from 1.500 to 2.500: there is no interval with fewer than 50."),
    ],
)
def test_page_begins_with_a_verdict_and_then_a_picture(tmp_path, n, gain, said):
    write_run(tmp_path)
    metrics = []
    for epoch in (0, 3):
        scores = {"conversation/success": epoch / 3}
        rows = [prediction(i, "a", reward=i % 4 + (gain if epoch else 0.0), **scores) for i in range(n)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
        metrics.append({"epoch": epoch, "metrics": {**scores, "reward": 1.5 + (gain if epoch else 0.0)}})
    write_lines(tmp_path / "test_split_metrics.jsonl", metrics)
    text = " ".join(page_of(tmp_path).text.split())
    assert text.index(said) < text.index("Task reward") < text.index("algorithm ppo")
    assert text.count("Task reward") == 1


def test_calibration_of_the_critic_is_drawn(tmp_path):
    bins = [{"value": i / 10, "mean_return": i / 20, "n": 9} for i in range(10)]
    about = {"checkpoint": "10", "split": "val", "n_states": 90, "n_continuations": 32, "notes": []}
    write_json(write_run(tmp_path) / "critic.json", {**about, "metrics": {"value_rank": 0.5}, "bins": bins})
    text = " ".join(page_of(tmp_path).text.split())
    assert text.index("90 states of the val split") < text.index("value of the critic") < text.index("a perfect one")


@pytest.mark.parametrize("damaged", ["{", "[]", '{"metrics": 1}', '{"metrics": {"a": "b"}, "bins": [{"value": 1}]}'])
def test_a_damaged_measure_of_the_critic_and_damaged_times_of_the_log_are_left_out(tmp_path, damaged):
    run = write_run(tmp_path)
    (run / "critic.json").write_text(damaged)
    lines = "2026-13-41 99:00:00,1 WARNING x: unreadable", "2026-01-01 09:00:00,1 WARNING x: said", "\x00"
    (run / "log.txt").write_text("\n".join(lines))
    text = page_of(tmp_path).text
    assert "value of the critic" not in text and "unreadable" not in text


def test_references_stand_beside_the_metrics_also_of_a_metric_that_repeats_another(tmp_path):
    write_run(tmp_path)
    for epoch in (0, 3):
        rows = [prediction(i, "a", reward=i % 4, m=i % 4) for i in range(80)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
        metrics = [{"epoch": each, "metrics": {"reward": 1.5, "m": 1.5}} for each in (0, 3)]
    write_lines(tmp_path / "test_split_metrics.jsonl", metrics)
    write_json(tmp_path / "test_split_references.json", {"m": 1.75})
    text = " ".join(page_of(tmp_path).text.split())
    assert "metric before after change references reward ↑ (higher is better) also m 1.500" in text
    assert "+0.000 +0.000 … +0.000 1.750" in text


def test_all_parts_of_the_reward_stand_with_each_reply_and_other_scores_where_there_is_room(tmp_path):
    write_run(tmp_path)
    parts = [f"reward/{name}" for name in "abcdef"]
    for epoch in (0, 3):
        scores = [{key: float(n**i) for n, key in enumerate(["m", *parts], start=2)} for i in range(1, 3)]
        rows = [prediction(i, "a", reward=sum(each.values()), **each) for i, each in enumerate(scores)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    metrics = [{"epoch": each, "metrics": {"reward": 1.5, "m": 1.5}} for each in (0, 3)]
    write_lines(tmp_path / "test_split_metrics.jsonl", metrics)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    lists = re.findall(r'<ul class="scores">(.*?)</ul>', page, re.S)
    assert lists and all(re.findall(r"<li>(\S+) <b>", each) == ["reward", *parts] for each in lists)


def test_samples_of_each_evaluation_can_be_chosen(tmp_path):
    write_run(tmp_path)
    for epoch in range(10):
        rows = [prediction(i, f"val {i} at {epoch}", m=epoch) for i in range(2)]
        write_json(tmp_path / f"epoch_{epoch}_val_split_predictions.json", rows)
    write_lines(
        tmp_path / "val_split_metrics.jsonl", [{"epoch": i, "metrics": {"m": i, "a_b/<c>": i}} for i in range(10)]
    )
    page = page_of(tmp_path)
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search("<figcaption><b>a_<wbr>b/<wbr>&lt;c&gt;</b>", source), "long titles break between words"
    assert re.search("<th>[a-z]+/<wbr>[a-z]", source), "and so do keys in tables"
    text = " ".join(page.text.split())
    assert "Samples of the val split, from 6 evaluations" in text and page.tags.count("article") == 4 + 2
    shown = [epoch for epoch in range(10) if f"val 0 at {epoch}" in re.sub(r"\s+", " ", page.text)]
    assert shown == [0, 1, 3, 5, 7, 9] and "after 7 iterations after 9 iterations" in text


def test_report_written_by_the_run_itself_is_that_of_a_complete_run_or_a_warning(tmp_path, caplog):
    write_run(tmp_path)
    assert "The run is not complete" in page_of(tmp_path).text
    write_report_or_warn(tmp_path, 3)
    page = Elements((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "not complete" not in page.text and "complete" in page.text
    write_report_or_warn(tmp_path / "none", 3)
    assert "could not be written" in caplog.text and f"rl4dialog report {tmp_path / 'none'}" in caplog.text


def test_warnings_are_at_the_top_with_advice(tmp_path):
    record = {"iteration": 2, "message": "KL <explodes>", "advice": "Lower the rate."}
    write_lines(write_run(tmp_path) / "warnings.jsonl", [record])
    text = " ".join(page_of(tmp_path).text.split())
    assert "1 warning: Iteration 2: KL <explodes>" in text and "Lower the rate." in text
    assert text.index("Lower the rate.") < text.index("algorithm ppo")


def test_markup_in_conversations_is_text(tmp_path):
    row = {**game(0, (EVIL, EVIL), reward=0.5), "outcome": {EVIL: 1.0}, "prompt_text": "a", "ref_text": "b"}
    page = write_games(tmp_path, [row, row], [row, row])
    assert page.tags.count("script") == 1 and "img" not in page.tags
    assert page.text.count(EVIL) == 2 * 2 * 3, "question, answer and outcome, before and after, of two samples"
    empty = {**game(0), "turns": [], "outcome": {}, "ended_by": None}
    assert write_games(tmp_path, [empty], [{**game(0, ("a", "b")), "ref_text": ""}]).tags.count("article") == 1


def test_markup_in_names_of_scores_is_text(tmp_path):
    key = """<b>'"</b>"""
    write_run(tmp_path)
    rows = [prediction(i, "a", **{key: float(i)}) for i in range(2)]
    for epoch in (0, 3):
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    write_lines(tmp_path / "rollout_info.jsonl", [{f"rollout/reward/{key}": float(i)} for i in range(3)])
    page = page_of(tmp_path)
    assert page.tags.count("article") == 2 and page.text.count(key) == 7, "a metric, a choice, a curve, four scores"
    assert page.tags.count("b") == len(re.findall(r"<b>", (tmp_path / "report.html").read_text(encoding="utf-8")))


def test_many_samples_are_capped_and_the_page_says_so(tmp_path):
    write_run(tmp_path)
    for epoch in (0, 3):
        rows = [prediction(i, f"reply {i} {epoch}", m=1, reward=i / 7) for i in range(500)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    page = page_of(tmp_path)
    assert page.tags.count("article") == 200
    assert "200 of 500 replies" in page.text and "degraded by the reward" in page.text
    assert {"499", "0"} <= {text.split()[1] for text in re.findall(r"reply \d+", page.text)}


@pytest.mark.parametrize("removed", ["*_predictions.json", "*.jsonl", "config.json", "rollout_info.jsonl", "test_*"])
def test_page_is_made_of_what_there_is(tmp_path, removed):
    write_run(tmp_path)
    for file in tmp_path.glob(removed):
        file.unlink()
    assert page_of(tmp_path).tags.count("main") == 1


def test_run_that_was_killed_before_its_end_says_what_is_missing(tmp_path):
    write_run(tmp_path)
    write_lines(tmp_path / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 0.5}}])
    (tmp_path / "epoch_3_test_split_predictions.json").unlink()
    page = page_of(tmp_path)
    assert "The test split was evaluated only once" in page.text
    assert "metric before m" in " ".join(page.text.split()), "without columns that would be empty"
    assert page.tags.count("article") == 4 and "reply 1 at 0" in page.text
    write_lines(tmp_path / "val_split_metrics.jsonl", [{"epoch": i, "metrics": {"m": 0.5}} for i in (0, 2)])
    assert "metrics and samples are those of val" in page_of(tmp_path).text


def test_supervised_run_shows_what_it_logged(tmp_path):
    write_run(tmp_path, alg={"id": "supervised", "model_name": "my/model"})
    (tmp_path / "rollout_info.jsonl").unlink()
    write_lines(tmp_path / "training_info.jsonl", [{"train_loss": 3.25, "n_steps": 3354}])
    text = " ".join(page_of(tmp_path).text.split())
    assert "train_loss 3.25" in text and "n_steps 3,354" in text and "model my/model" in text
    assert "before training and after 3 epochs" in text and "Curves require" not in text
    short = page_of(write_run(tmp_path / "short", n_iters=2)).text
    assert "Curves require at least 3 iterations." in short and "rollout/kl" in short


def test_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    run = write_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"a\.html cannot be written: No such file or directory; choose"):
        write_report(run, tmp_path / "none" / "a.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RunFolderError, match=r"folder\.html cannot be written"):
        write_report(run, tmp_path / "folder.html")
    assert not list(tmp_path.glob(".*.tmp"))
    path = run / "epoch_3_test_split_predictions.json"
    path.write_text(path.read_text().replace("reply 0", "reply \\ud83d"))  # half of a character
    assert "reply <mark>?</mark> at <mark>3</mark>" in write_report(run).read_text(encoding="utf-8")
