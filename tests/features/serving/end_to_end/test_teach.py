"""``rl4dialog teach``: a run's model is taught in situations of its datapool, with the run's partner."""

import io
import re

import pytest
import torch
from runs import make_config, module_run
from safetensors.torch import load_file

from rl4dialog import cli, load_policy
from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.features import features
from rl4dialog.core.feedback import read_feedback
from rl4dialog.features.serving.teaching import build_teaching
from rl4dialog.policies.saving import weights_hash

GOALS = {
    "seed": 0,
    "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 300},
    "datapool": {"id": "get_acquainted", "args": {"n_train": 20, "n_val": 2, "n_test": 2, "goals_in_prompt": True}},
    "env": {"n_envs": 1, "args": {"max_prompt_length": 200, "max_episode_length": 8, "max_turns": 2}},
    "alg": {
        "id": "supervised",
        "model_type": "causal",
        "model_name": "builtin/tiny-gpt2",
        "training_args": {"max_steps": 2},
        "generation_kwargs": {"do_sample": True, "max_new_tokens": 8},
    },
    "train_evaluation": {"max_eval_samples": 2, "metrics": [{"id": "goal_followed"}]},
}
GOALS["env"]["args"]["partner"] = {"id": "facts"}

pytestmark = pytest.mark.skipif(
    not {"dialogue_acts", "feedback"} <= features().keys(), reason="follows goals, and learns from what was taught"
)

run = module_run(lambda folder: GOALS)


@pytest.fixture(scope="module")
def loaded(run):
    return load_policy(run)


def teach(lines, monkeypatch, *flags):
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return cli.main(["teach", *flags])


def test_session_in_the_terminal_is_continued_by_the_next_one(run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "feedback.jsonl"
    flags = ("--run", str(run), "--feedback", str(file), "--n", "3", "--seed", "0")
    assert teach("where is your home ?\n/goal pet\nwhat pet do you have ?\n/down\n", monkeypatch, *flags) == 0
    printed = capsys.readouterr().out
    assert "0 of 3 done.\npersona: " in printed and "\ngoal: pet\nmodel: " in printed
    # The partner tells its facts, and max_turns is 2.
    given = read_feedback(file)
    assert [each.kind for each in given] == ["correction", "correction", "rating"]
    assert given[1].turns[: len(given[0].turns) + 1] == [*given[0].turns, "where is your home ?"]
    assert given[1].turns[-1].startswith(("my home is ", "nothing special"))
    assert (given[1].persona or "").endswith(" goal : pet") and "The conversation is over." in printed
    assert f"Appended to {file}: 1 rating, 2 corrections." in printed
    assert f"\n  rl4dialog improve --run {run} --feedback {file}\n" in printed
    assert teach("/next\n/up\n", monkeypatch, *flags) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 done.\n" in printed and printed.endswith("3 of 3 done.\nNo judgements were made.\n")


def test_model_learns_while_it_is_taught_and_is_saved_when_the_person_accepts(run, tmp_path, monkeypatch, capsys):
    flags = ("--run", str(run), "--feedback", str(tmp_path / "f.jsonl"), "--seed", "0", "--learn_every")
    assert teach("a cat ?\n/undo\n", monkeypatch, *flags, "1") == 0
    printed = capsys.readouterr().out
    before, after = map(float, re.search(r"Learned from 1 corrections: loss (\S+) to (\S+)\. /keep", printed).groups())
    assert after < before and "The model is as it was kept last." in printed
    assert not (tmp_path / "taught").exists(), "nothing was accepted"
    assert teach("a cat ?\nwhich cat ?\n/keep\n", monkeypatch, *flags, "2") == 0
    assert capsys.readouterr().out.count("Learned from 2 corrections") == 1
    assert [each.correction for each in read_feedback(tmp_path / "f.jsonl")] == ["a cat ?", "a cat ?", "which cat ?"]
    taught, start = (load_policy(run).policy.language_model for _ in range(2))
    taught.load_state_dict(load_file(tmp_path / "taught" / "model.safetensors"), strict=False)
    assert weights_hash(taught) != weights_hash(start)
    assert teach("/keep\n", monkeypatch, *flags, "1") == 0, "the adapters are those that were kept"
    again = load_file(tmp_path / "taught" / "model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in taught.state_dict().items() if name in again)


def test_lesson_that_is_killed_loses_no_correction_and_changes_no_weight(run, tmp_path, monkeypatch):
    loaded = load_policy(run)
    teaching = build_teaching(loaded, "m", "train", 2, tmp_path / "f.jsonl", 0, learn_every=1)
    before = weights_hash(loaded.policy.language_model)
    n_steps = iter(range(3))

    def killed(parameters, norm):
        if next(n_steps, None) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", killed)
    with pytest.raises(KeyboardInterrupt):
        corrected(teaching, "a cat ?")
    assert [each.correction for each in read_feedback(tmp_path / "f.jsonl")] == ["a cat ?"]
    assert weights_hash(loaded.policy.language_model) == before


def test_judged_prompts_are_learned_as_the_model_read_them(loaded, tmp_path):
    file = tmp_path / "feedback.jsonl"
    teaching = build_teaching(loaded, "m", "train", 4, file, 0)
    while (shown := teaching.current("me")) is not None:
        teaching.correct("me", shown.id, 0, "what is your favorite food ?")
    format = loaded.dialogue_format
    assert format is not None and format.in_conversation
    learned = DataPoolRegistry.get(
        "feedback",
        {"split": "train", "path": str(file), "use": "corrections", "held_out_share": 0, "in_conversation": True},
    )
    prompts = [sample.prompt_or_input_text for sample, _ in learned]
    given = read_feedback(file)
    assert prompts == [format.prompt(each.turns, each.persona) for each in given] and len(prompts) == 8
    of_samples = [sample.prompt_or_input_text for sample in loaded.data.samples("train")]
    assert [prompt in of_samples for prompt in prompts] == [True, False] * 4  # the second turns are new


def test_only_situations_with_goals_are_shown(loaded, tmp_path):
    teaching = build_teaching(loaded, "m", "train", None, tmp_path / "feedback.jsonl")
    assert teaching.progress == "0 of 80 done."  # half of the 160 utterances are the agent's
    assert {"food", "pet", "small_talk"} < set(teaching.goals) and teaching.goal("me") in teaching.goals


def corrected(teaching, *texts):
    for text in texts:
        shown = teaching.current("me")
        assert shown is not None
        teaching.correct("me", shown.id, 0, text)
    return teaching.given


def small_talk(folder):
    datapool = {"id": "small_talk", "args": {"n_train": 10, "n_val": 3, "n_test": 3, "samples": "dialogues"}}
    return make_config(folder, datapool=datapool, train_evaluation__n_iters=0, env__args__max_prompt_length=60)


on_small_talk = module_run(small_talk)


def test_without_a_partner_the_samples_own_utterances_follow(on_small_talk, tmp_path):
    loaded = load_policy(on_small_talk)
    given = corrected(build_teaching(loaded, "m", "train", 1, tmp_path / "f.jsonl"), "yes .", "no .")
    (sample,) = (s for s in loaded.data.samples("train") if s.meta_data and s.meta_data["history"] == given[0].turns)
    assert sample.meta_data is not None
    assert given[1].turns == [*given[0].turns, "yes .", sample.meta_data["continuation"][0]]


@pytest.mark.parametrize("id", ["language_model", "self_play"])
def test_language_models_answer_as_the_partner(on_small_talk, tmp_path, monkeypatch, id):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(on_small_talk.parents[2] / "cache"))
    loaded = load_policy(on_small_talk)
    assert loaded.config.env is not None
    partner = {"id": id, "args": {"model_name": str(on_small_talk / "model")} if id == "language_model" else {}}
    args = loaded.config.env.args.model_dump() | {"partner": partner, "max_turns": 2}
    loaded.config.env.args = type(loaded.config.env.args)(**args)
    teaching = build_teaching(loaded, "m", "train", 2, tmp_path / "f.jsonl", 0)
    given = corrected(teaching, "yes .", "no .", "well .")
    assert given[1].turns[:-1] == [*given[0].turns, "yes ."] and given[1].turns[-1].strip()
    assert given[2].turns != given[1].turns and len(given[2].turns) == len(given[0].turns)  # max_turns


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run", "RUN", "--n", "0"], "--n must be at least 1, not 0"),
        (["--run", "RUN", "--learn_every", "0"], "--learn_every must be at least 1, not 0"),
        ([], "pass either --run with a run folder, or --model"),
        (
            ["--run", "RUN", "--set", "datapool.id=dummy_pool", "--set", "datapool.args={prompt: hi}"],
            "contains no dialogues",
        ),
    ],
)
def test_what_cannot_be_taught_is_an_error(run, monkeypatch, refused, flags, message):
    refused(teach("", monkeypatch, *(flag.replace("RUN", str(run)) for flag in flags)), message)
