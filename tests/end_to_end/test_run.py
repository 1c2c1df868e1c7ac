"""A whole run from a YAML file leaves what the plan says, and its model loads elsewhere."""

import json
import re
import shutil

import pytest
from covering import covering
from feature_rows import rows_of_features
from runs import DENSE_REWARD, SAMPLING, SHORT, lines, make_config, supervised, train, trained_run, without_times
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from rl4dialog.inference.loading import load_policy
from rl4dialog.runs.report.pages import write_report
from rl4dialog.scores import meteor
from rl4dialog.text.chat_template import START_VARIABLE


@pytest.mark.usefixtures("reward_curve")
def test_run_leaves_every_file_and_says_what_changed(tmp_path, capsys):
    warm_start = {"n_epochs": 1, "batch_size": 8}
    folder = trained_run(tmp_path, make_config(tmp_path, warm_start=warm_start))
    output = capsys.readouterr()
    assert "ppo on builtin/tiny-gpt2, cpu, seed 0, 2 iterations\nRun folder: " in output.err
    assert "the same command continues" in output.err

    assert [line["iteration"] for line in lines(folder / "rollout_info.jsonl")] == [1, 2]
    first = lines(folder / "rollout_info.jsonl")[0]
    assert first["rollout/tokens"] >= 32
    assert abs(first["rollout/kl"]) < 1e-4
    assert {"rollout/task_reward", "rollout/reward/rouge", "rollout/kl_coeff", "time/generate_s"} <= first.keys()
    assert "train/value_loss" in lines(folder / "training_info.jsonl")[0]
    assert [line["epoch"] for line in lines(folder / "val_split_metrics.jsonl")] == [0, 1, 2]
    assert [line["epoch"] for line in lines(folder / "test_split_metrics.jsonl")] == [0, 2]
    predictions = json.loads((folder / "epoch_2_test_split_predictions.json").read_text(encoding="utf-8"))
    assert len(predictions) == 6
    assert {"sample_id", "prompt_text", "generated_text", "ref_text", "lexical/rouge_rouge1"} <= predictions[0].keys()
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["alg"]["id"] == "ppo"
    assert (folder / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "log.txt").stat().st_size > 0

    assert "before RL" in output.out and "references" in output.out
    after = "".join(f"  rl4dialog {name} --run {folder}\n" for name in rows_of_features("NEXT"))
    after = f"Run folder: {folder}\nNext:\n{after}  open {folder}/report.html in a browser\n"
    assert output.out.endswith(after)
    said = (folder / "log.txt").read_text(encoding="utf-8")
    for line in ("Warm start, step ", "evaluation of test after iteration 0: reward ", "iteration 2/2: reward "):
        assert line in output.err and line in said


def test_trained_model_is_the_model_name_of_the_next_run(plain_run, tmp_path):
    name = str(plain_run / "model")
    model = AutoModelForCausalLM.from_pretrained(name)
    assert model.get_input_embeddings().weight.shape[0] == len(AutoTokenizer.from_pretrained(name))
    names = {"tokenizer": {"model_name": name}, "alg__policy__args__model_name": name}
    sampling = {"reward_fn": DENSE_REWARD, "train_evaluation__generation_kwargs": SAMPLING}
    run = trained_run(tmp_path, make_config(tmp_path, **names, **sampling, train_evaluation__n_iters=0))
    before = lines(run / "test_split_metrics.jsonl")[0]["metrics"]
    assert before == pytest.approx(lines(plain_run / "test_split_metrics.jsonl")[-1]["metrics"])


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


@pytest.mark.parametrize("critic", ["separate", pytest.param("shared", marks=pytest.mark.long)])
def test_worker_processes_give_the_same_run_as_one_process(tmp_path, critic):
    infos = []
    uses_meteor = critic == "shared" and meteor._DEBIAN_WORDNET.is_dir()
    reward = {"id": "meteor"} if uses_meteor else {"id": "rouge", "args": {"rouge_type": "rouge1"}}
    evaluation = {**SHORT, "train_evaluation__n_iters": 2, "train_evaluation__eval_every": 9}
    for kind in ("dummy", "blocks", *(["subproc"] if critic == "shared" else [])):
        settings = {"env__vec_env": kind, "reward_fn": reward, "alg__policy__args__critic": critic}
        run = trained_run(tmp_path, make_config(tmp_path, **evaluation, **settings), "--overwrite")
        infos.append([without_times(line) for line in lines(run / "rollout_info.jsonl")])
    assert infos[0] and all(info == infos[0] for info in infos)


ALGORITHMS = {
    "ppo": {},
    "nlpo": {},
    "a2c": {"batch_size": None, "n_epochs": None},
    "trpo": {"n_epochs": None, "n_critic_updates": 2, "cg_max_steps": 3},
    "rloo": {"n_generations": 2},
    "reinforce": {"baseline": "prompt"},
    "grpo": {"n_generations": 2},
}


@pytest.mark.parametrize(("algorithm", "model"), covering(ALGORITHMS, ("gpt2", "t5")))
def test_every_algorithm_and_policy_trains_from_yaml(tmp_path, algorithm, model):
    policy = "causal_lm_actor_critic_policy" if model == "gpt2" else "seq2seq_lm_actor_critic_policy"
    config = make_config(
        tmp_path,
        alg__id=algorithm,
        alg__policy__id=("maskable_" if algorithm == "nlpo" else "") + policy,
        alg__policy__args__model_name=f"builtin/tiny-{model}",
        warm_start={"n_epochs": 1, "batch_size": 8},
        **SHORT,
        **{f"alg__args__{name}": value for name, value in ALGORITHMS[algorithm].items()},
    )
    config["alg"]["args"] = {name: value for name, value in config["alg"]["args"].items() if value is not None}
    run = trained_run(tmp_path, config)
    (info,) = lines(run / "rollout_info.jsonl")
    assert abs(info["rollout/kl"]) < 1e-4
    auto_class = AutoModelForCausalLM if model == "gpt2" else AutoModelForSeq2SeqLM
    auto_class.from_pretrained(run / "model")


def test_chat_template_of_the_tokenizer_writes_prompts_and_turns_with_the_date_of_the_start(
    plain_run, tmp_path, monkeypatch
):
    folder = str(shutil.copytree(plain_run / "model", tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{{ strftime_now('%F ') }}"
        "{% for m in messages %}{{ m['role'][0] + ':' + m['content'] + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    config = make_config(
        tmp_path,
        **SHORT,
        tokenizer={"model_name": folder},
        alg__policy__args__model_name=folder,
        datapool__args__format="chat_template",
        reward_fn={"id": "length_penalty", "args": {"max_length": 3}},
        env__args__max_turns=2,
        env__args__partner_replies=["and then ?"],
        train_evaluation__save_every=1,
    )
    monkeypatch.setenv(START_VARIABLE, "2026-01-31T12:00:00")
    assert train(tmp_path, config) == 0
    monkeypatch.setenv(START_VARIABLE, "2026-02-01")
    config["train_evaluation"]["n_iters"] = 2
    run = trained_run(tmp_path, config, "--resume")
    for epoch in (0, 2):
        predictions = json.loads((run / f"epoch_{epoch}_test_split_predictions.json").read_text())
        assert predictions[0]["prompt_text"].startswith("2026-01-31 ")
        assert predictions[0]["prompt_text"].endswith("<|endoftext|>a:")
    assert load_policy(run).data.samples("test")[0].prompt_or_input_text.startswith("2026-01-31 ")


@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_supervised_run_has_the_same_folder(tmp_path, model):
    alg = supervised(model, num_train_epochs=1, per_device_train_batch_size=8)
    config = make_config(tmp_path, **SHORT, alg=alg)
    if model == "gpt2":
        del config["reward_fn"]
    folder = trained_run(tmp_path, config)
    metrics = lines(folder / "test_split_metrics.jsonl")
    assert [line["epoch"] for line in metrics] == [0, 1]
    assert ("reward" in metrics[1]["metrics"]) == (model == "t5"), "there is a reward only where one is named"
    (AutoModelForCausalLM if model == "gpt2" else AutoModelForSeq2SeqLM).from_pretrained(folder / "model")


@pytest.mark.long
def test_wandb_works_offline_and_without_a_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb_config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    run = trained_run(tmp_path, make_config(tmp_path, **SHORT), "--log_to_wandb")
    assert list((run / "wandb").glob("offline-run-*"))


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    assert train(tmp_path, make_config(tmp_path), "--dry_run", "--set", "train_evaluation.n_iters=7") == 0
    plan = capsys.readouterr().out
    assert re.search(r"iterations\W+7\W", plan)
    assert re.search(r"agent tokens per iteration\W+at least 32\W", plan)
    assert re.search(r"optimizer steps\W+about 14\W", plan)
    assert re.search(r"environments\W+2\W", plan) and re.search(r"worker processes\W+none\W", plan)
    assert re.search(r"rewards\W+rouge\W", plan) and re.search(r"metrics\W+rouge, length\W", plan)
    assert not (tmp_path / "runs").exists()


def test_dry_run_builds_rewards_and_metrics(tmp_path, refused):
    needs_files = {"id": "meteor", "args": {"wordnet_path": str(tmp_path / "none")}}
    for key in ("reward_fn", "train_evaluation__metrics"):
        config = make_config(tmp_path, **{key: needs_files if key == "reward_fn" else [needs_files]})
        refused(train(tmp_path, config, "--dry_run"), "METEOR needs WordNet")


def test_dry_run_says_that_the_intent_classifier_is_to_be_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    reward = {"id": "intent_accuracy", "args": {"synonyms": False}}
    config = make_config(tmp_path, reward_fn=reward, train_evaluation__metrics=[{"id": "intent_accuracy"}])
    assert train(tmp_path, config, "--dry_run") == 0
    assert re.search(r"intent classifier\W+not cached yet", capsys.readouterr().out)
    assert not list((tmp_path / "cache").glob("intent_classifier-*"))


@pytest.mark.parametrize(("n_workers", "shown"), [(None, 2), (99, 20)])
def test_dry_run_tells_the_number_of_worker_processes(tmp_path, monkeypatch, capsys, n_workers, shown):
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    config = make_config(tmp_path, env__vec_env="blocks", env__n_envs=20, env__n_workers=n_workers)
    assert train(tmp_path, config, "--dry_run") == 0
    plan = capsys.readouterr().out
    assert re.search(r"environments\W+20\W", plan) and re.search(rf"worker processes\W+{shown}\W", plan)


REWARD = """
from rl4dialog.catalog import RewardFunctionRegistry

@RewardFunctionRegistry.register("reads")
class Reads:
    def __init__(self):
        self.file = open(__file__)

    def __call__(self, previous, action, current, done, meta):
        return 0.0
"""


def test_dry_run_refuses_what_cannot_be_sent_to_workers(tmp_path, capsys):
    (tmp_path / "held.py").write_text(REWARD, encoding="utf-8")
    errors = []
    for flags, vec_env, code in ((["--dry_run"], None, 2), ([], "blocks", 2), (["--dry_run"], "dummy", 0)):
        config = make_config(tmp_path, reward_fn={"id": "reads"}, env__vec_env=vec_env, imports=["held.py"])
        assert train(tmp_path, config, *flags) == code
        errors.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")])
    assert errors[0] == errors[1] and errors[2] == []
    assert "reward 'reads' cannot be sent to worker processes" in errors[0][0]


@pytest.mark.parametrize("algorithm", ["a2c", "trpo", "rloo", "nlpo"])
def test_dry_run_knows_every_algorithm(tmp_path, algorithm, capsys):
    policy = ("maskable_" if algorithm == "nlpo" else "") + "causal_lm_actor_critic_policy"
    config = make_config(tmp_path, alg__id=algorithm, alg__policy__id=policy)
    config["alg"]["args"] = {"n_steps": 16, **({"n_generations": 2} if algorithm == "rloo" else {})}
    sizes = []
    for critic in ("separate", "shared"):
        config["alg"]["policy"]["args"]["critic"] = critic
        assert train(tmp_path, config, "--dry_run") == 0
        plan = capsys.readouterr().out
        (size,) = re.findall(r"optimizer\W+([\d,]+) MiB", plan)
        sizes.append(int(size))
    assert ("replies per prompt" in plan) == (algorithm == "rloo")
    assert (sizes[0] > sizes[1]) == (algorithm != "rloo"), "a critic of its own costs memory, where there is one"
