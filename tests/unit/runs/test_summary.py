"""The end of a run on the console."""

import io

import pytest
from rich.console import Console
from run_files import prediction, write_json, write_lines, write_run

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.functional.statistics import Estimate, Interval
from rl4dialog.runs.report.metrics import MIN_SAMPLES, MetricChange, direction
from rl4dialog.runs.report.pages import write_report
from rl4dialog.runs.summary import Example, headlines_of, print_summary, verdict

BEFORE = {"intent/accuracy": 0.5, "lexical/meteor": 0.25, "diversity_metrics/entropy-2": 1234.0}
AFTER = {"intent/accuracy": 0.625, "lexical/meteor": 0.2, "diversity_metrics/entropy-2": 900.0}
GOLD = {"intent/accuracy": 0.9, "lexical/meteor": float("nan")}
EXAMPLE = Example(["how are you?", "fine. and you?"], "[bold]bad[/bold] [/]", "very well", "not so well")


def render(
    width=80,
    terminal=False,
    encoding="utf-8",
    before=BEFORE,
    after=AFTER,
    gold=GOLD,
    examples=None,
    path="/runs/p/e",
    **kwargs,
):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    print_summary(before, after, gold, [EXAMPLE] if examples is None else examples, path, console, **kwargs)
    file.flush()
    file.seek(0)
    return file.read()


def row(text, key):
    (line,) = [line for line in text.splitlines() if key in line]
    return line.replace("|", " ").split()


def test_metrics_stand_before_after_change_and_gold():
    text = render(width=120)
    header = " ".join(row(text, "before RL |"))
    assert header == "metric before RL after RL change references"
    assert row(text, "intent/accuracy") == ["intent/accuracy", "0.500", "0.625", "+0.125", "0.900"]
    assert row(text, "meteor") == ["lexical/meteor", "0.250", "0.200", "-0.050", "-"]
    assert row(text, "entropy-2") == ["diversity_metrics/entropy-2", "1,234", "900.0", "-334.0", "-"]


@pytest.mark.parametrize("n_prompts", [80, 6])
def test_changes_have_an_interval_if_there_are_enough_samples(tmp_path, n_prompts):
    folder = str(write_run(tmp_path, n_prompts=n_prompts))
    text = render(before={"m": 0.5, "d": 7.0}, after={"m": 1.0, "d": 8.0}, gold=None, path=folder)
    assert f"Test metrics of {n_prompts} samples" in text
    is_few = n_prompts < MIN_SAMPLES
    assert ("Changes have no interval: that takes at least 50 samples" in text) is is_few
    assert row(text, "|m ")[3:] == (["+0.500"] if is_few else ["+0.500", "+0.388", "to", "+0.612"])
    assert row(text, "|d ")[3:] == (["+1.000"] if is_few else ["+1.000", "-"])


@pytest.mark.parametrize(
    ("gain", "said", "has_advice"),
    [(1.0, "Training improved reward on 80 test samples", False), (0.0, "No significant", True)],
)
def test_what_training_did_is_said_in_a_sentence(tmp_path, gain, said, has_advice):
    folder = write_run(tmp_path)
    for epoch, rise in ((0, 0.0), (3, gain)):
        replies = [prediction(i, "reply", reward=i % 2 + rise * (1 + i % 3)) for i in range(80)]
        write_json(folder / f"epoch_{epoch}_test_split_predictions.json", replies)
    text = render(width=120, before={"reward": 0.5}, after={"reward": 0.5 + gain}, gold=None, path=str(folder))
    assert said in text and ("What to look at first" in text) is has_advice


def test_what_was_trained_comes_first_and_what_did_not_change_last():
    def change(key, gain):
        return MetricChange(key, Estimate(0.5), Estimate(0.5 + gain), Estimate(gain), direction=direction(key))

    gains = {"reward/part": 1, "length/words": 1, "lexical/ter": 1e-9, "lexical/meteor": 1, "conversation/success": 1}
    expected = ["conversation/success", "lexical/meteor", "reward/part", "length/words", "lexical/ter"]
    for trained in ([], ["reward"], ["conversation/return"], ["episode/return"]):
        found = headlines_of([change(key, gain) for key, gain in (gains | dict.fromkeys(trained, 0)).items()])
        assert [each.key for each in found] == trained + expected


def test_a_run_that_keeps_the_model_before_training_says_so_wherever_its_end_is_read(tmp_path):
    folder, n = write_run(tmp_path / "run", n_prompts=80), {"m": 0.5, "d": 7.0}
    of_val = [{"epoch": 0, "metrics": {"m": 0.9}}, {"epoch": 3, "metrics": {"m": 0.1}}]
    write_lines(folder / "val_split_metrics.jsonl", of_val)
    write_lines(folder / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": n}])
    (folder / "epoch_3_test_split_predictions.json").unlink()
    write_json(folder / "result.json", {"iterations": 0, "test": {"before": n, "after": n}})
    text = render(width=120, before=n, after=n, gold=None, path=str(folder))
    assert "No iteration was better on val" in text and row(text, "|m ")[3:] == ["+0.000", *["+0.000", "to", "+0.000"]]
    assert "which is kept: nothing changes on 80 test prompts" in write_report(folder).read_text(encoding="utf-8")


def test_no_other_metric_takes_the_place_of_a_reward_without_two_evaluations():
    one = Estimate(0.5, Interval(0.4, 0.6))
    reward = MetricChange("reward", one, None, None, direction="higher")
    success = MetricChange("conversation/success", one, one, one, direction="higher")
    assert verdict([success], "it").startswith("Training improved conversation/success on it, from 0.500")
    assert verdict([reward, success], "it").startswith("No verdict on reward on it, from 0.500 to -: one of")
    assert verdict([reward], "it") == verdict([], "it") == ""


def test_names_of_metrics_have_no_group_where_intervals_leave_no_room(tmp_path):
    folder = str(write_run(tmp_path, n_prompts=80))
    scores = {"m": 0.5, "diversity_metrics/entropy-2": 1.0}
    for width, name in ((80, "entropy-2"), (120, "diversity_metrics/entropy-2")):
        assert row(render(width, before=scores, after=scores, gold=None, path=folder), "entropy-2")[0] == name
    same = {"m": 0.5, "a/x": 1.0, "b/x": 1.0}
    assert row(render(before=same, after=same, gold=None, path=folder, examples=[]), "a/x")[0] == "a/x"


def test_what_is_not_known_is_left_out():
    text = render(before={"a/x": 1.0}, after={"b/y": 2.0}, gold=None, examples=[])
    assert row(text, "a/x") == ["a/x", "1.000", "-", "-"] and "references" not in text
    assert row(text, "b/y") == ["b/y", "-", "2.000", "-"]
    assert "Nothing was measured: the config has no train_evaluation.metrics" in render(before={}, after={}, gold=None)
    assert "reference" not in render(examples=[Example(["a"], "one", "two", "")]).split("The same prompts")[1]


def test_crowded_group_is_cut_and_the_rest_is_named():
    crowded = {**AFTER, **{f"diversity_metrics/unique-{n}": 1.0 for n in range(30)}}
    text = render(after=crowded)
    assert "unique-3" not in text
    assert "30 more scores are in test_split_metrics.jsonl" in text
    assert "more scores" not in render()


def test_replies_are_shown_as_they_are_and_the_prompt_by_utterance():
    text = render()
    assert "[bold]bad[/bold] [/]" in text and "- how are you?" in text and "- fine. and you?" in text
    text = render(examples=[Example(["a"], "", "one\ntwo\x1b[31m", "x" * 100_000)])
    assert "(nothing)" in text and "one two [31m" in text and "\x1b" not in text
    assert 390 < text.count("x") < 500 and " ..." in text


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [40, 80, 109, 110, 200])
def test_no_line_is_longer_than_the_console(width, terminal):
    long = Example(["word " * 60], "reply " * 30, "x" * 150, "gold " * 30)
    text = render(width=width, terminal=terminal, examples=[long])
    assert max(map(len, text.splitlines())) <= width


def test_keys_are_whole_at_80_columns():
    assert render(encoding="ascii").isascii()
    scores = {"diversity_metrics/distinct-1": 9.25, "lexical/meteor_exact_stem": 0.1}
    for terminal in (True, False):
        text = render(before=scores, after=scores, gold=scores, terminal=terminal)
        assert all(key in text for key in scores)


def test_narrow_console_has_the_prompt_above_and_wide_one_beside():
    def line_with(text, part):
        return next(line for line in text.splitlines() if part in line)

    assert "very well" in line_with(render(width=130), "how are you?")
    assert "very well" not in line_with(render(width=80), "how are you?")
    assert "very well" in line_with(render(width=80), "[bold]")


def game(*questions, reward=-0.05, n_given=1):
    turns = [Turn("guess what [bold]", PARTNER)][:n_given]
    turns += [turn for text in questions for turn in (Turn(text, AGENT, reward=reward), Turn("yes", PARTNER))]
    return Dialogue("x", tuple(turns), n_given=n_given, outcome={"success": 1.0}, ended_by="partner")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_conversations_stand_side_by_side(width):
    text = render(width=width, examples=[], conversations=[(game("is it red ?", ""), game("a\x1b[31m", reward=0.95))])
    assert "before RL and" in text and "partner: guess what [bold]" in text and "\x1b" not in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.count("|") == 3]
    before, after = (" ".join(" ".join(column).split()) for column in zip(*rows, strict=True))
    assert "agent: is it red ? (-0.05) partner: yes agent: (nothing) (-0.05) partner: yes" in before
    assert "agent: a [31m (+0.95) partner: yes (ended by the partner; success 1)" in after
    assert max(map(len, text.splitlines())) <= width


def test_rewards_are_left_out_where_nothing_is_paid_or_known():
    for reward in (0.0, float("nan")):
        text = render(examples=[], conversations=[(game("a", reward=reward), game("b", reward=reward, n_given=0))])
        assert "agent: a |" in " ".join(text.split()) and "nan" not in text


def test_endless_conversation_does_not_fill_the_console():
    text = render(examples=[], conversations=[(game(*"a" * 500), game("x" * 100_000))])
    assert len(text.splitlines()) < 60 and "... 984 more utterances" in text and " ..." in text


def test_path_is_not_broken_and_other_labels_can_be_given():
    path = "/a-long-way/" + "x" * 100
    assert f"Run folder: {path}\n" in render(width=40, path=path)
    text = render(labels=("before", "after"), examples=[])
    assert "RL" not in text and "before" in text


def test_players_stand_beside_the_model_in_a_table_of_their_own():
    players = {"blind": {"conversation/return": -0.25}, "best": {"conversation/return": 0.75, "conversation/x": 1.0}}
    after = {"conversation/return": 0.5}
    text = render(before=after, after=after, gold={"other": 1.0}, examples=[], players=players)
    assert "blind" in text and "best" in text
    assert row(text, "|return") == ["return", "0.500", "-0.250", "0.750"]
    assert row(text, "|x ") == ["x", "-", "-", "1.000"]
    rule = {"episode/success": 0.5, "task/convlab2/success": 0.25, "task/book": 1.0}
    text = render(before=after, after=after, gold=None, examples=[], players={"rule": rule})
    assert [row(text, name)[0] for name in ("e/success", "2/success", "book")] == [*[*rule][:2], "book"]
    assert "references" not in text, "nothing of a conversation is known of them"
    assert "Scripted players" not in render(players={})
