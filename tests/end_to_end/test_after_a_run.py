"""What can be done with a run that is over: load it, evaluate it, let it reply, publish it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from feature_rows import rows_of_features
from http_servers import Server, saying
from pages import blocks
from runs import SHORT, complete_run, make_config, run_folder, supervised, write_config

import rl4dialog
from rl4dialog import cli
from rl4dialog.commands.parser import COMMANDS
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, ModelError, RL4DialogError, RunFolderError
from rl4dialog.core.files import write_manifest
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.saving import save_policy, weights_hash
from rl4dialog.training.building.language_model import build_language_model

OWN_REWARD = """
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register("n_words")
def n_words(prompt_text, gen_text, ref_texts, meta_info):
    return float(len(gen_text.split()))
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder with a complete run, which imports a file beside its config. Tests leave the run as it is."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "own_reward.py").write_text(OWN_REWARD, encoding="utf-8")
    rewards = [{"id": "n_words"}, {"id": "rouge", "args": {"rouge_type": "rouge1"}, "weight": 2.0}]
    config = make_config(
        folder,
        imports=["./own_reward.py"],
        reward_fn={"id": "composite", "args": {"rewards": rewards}},
        train_evaluation__generation_kwargs={"do_sample": True, "top_k": 20, "max_new_tokens": 8},
    )
    with complete_run(folder, config):
        shutil.rmtree(run_folder(folder) / "checkpoints")  # the tests add those that they need
        yield folder


@pytest.fixture
def run(workshop):
    return run_folder(workshop)


@pytest.fixture
def copied(run, tmp_path):
    """The run at another place, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "elsewhere"))


def save_checkpoint(run, policy, iteration):
    """What a run leaves in ``checkpoints/``."""
    folder = run / "checkpoints" / f"iteration_{iteration:06d}"
    save_policy(policy, folder)
    (folder / "state.json").write_text(json.dumps({"iteration": iteration}), encoding="utf-8")
    write_manifest(folder)
    return folder


def policy_with_critic(run, critic="separate"):
    loaded = rl4dialog.load_policy(run, trust=True)
    policy = loaded._around(loaded._language_model(run / "model"), critic=critic)
    assert policy._value_head is not None
    torch.nn.init.normal_(policy._value_head.output.weight, std=0.2)
    return policy


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_evaluation_gives_exactly_what_the_run_logged(run, tmp_path, capsys, refused):
    assert cli.main(["evaluate", "--trust", "--run", str(run), "--output_path", str(tmp_path / "found")]) == 0
    found = read(tmp_path / "found" / "metrics.json")
    assert found["metrics"] == read(run / "result.json")["test"]["after"]
    assert found["split"] == "test" and found["n_samples"] == 6
    assert read(tmp_path / "found" / "predictions.json") == read(run / "epoch_2_test_split_predictions.json")
    output = capsys.readouterr().out
    assert "references" in output and f"Evaluation: {tmp_path / 'found'}" in output
    refused(
        cli.main(["evaluate", "--trust", "--run", str(run), "--output_path", str(tmp_path / "found")]),
        "never overwritten",
    )


def test_evaluations_of_a_run_stand_in_its_folder_beside_each_other(copied):
    save_checkpoint(copied, rl4dialog.load_policy(copied, trust=True).policy, 1)
    for flags in ([], [], ["--checkpoint", "1"]):
        assert cli.main(["evaluate", "--trust", "--run", str(copied), "--split", "val", *flags]) == 0
    names = sorted(path.name for path in (copied / "evaluations").iterdir())
    assert len(names) == 3 and names[2].startswith("val_2") and sum(name.startswith("val_1_") for name in names) == 1
    found = [read(path / "metrics.json")["metrics"] for path in (copied / "evaluations").iterdir()]
    assert found == [read(copied / "result.json")["val"]["after"]] * 3


def test_any_model_is_evaluated_by_a_config(workshop, run, tmp_path):
    arguments = ["--model", str(run / "model"), "--config_path", str(workshop / "config.yml"), "--split", "test"]
    assert cli.main(["evaluate", *arguments, "--output_path", str(tmp_path / "found")]) == 0
    assert read(tmp_path / "found" / "metrics.json")["metrics"] == read(run / "result.json")["test"]["after"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "pass either --run with a run folder, or --model with --config_path"),
        (["--run", "a", "--model", "b"], "pass either --run"),
        (["--model", "b"], "--model needs --config_path"),
        (["--run", "a", "--config_path", "c"], "--config_path works only with --model"),
        (["--model", "b", "--config_path", "c", "--checkpoint", "3"], "--checkpoint works only with --run"),
        (["--model", "b", "--config_path", "c", "--policy", "rule"], "pass either --model or --policy"),
        (["--run", "nowhere"], "nowhere does not exist; pass a run folder"),
    ],
)
def test_commands_say_which_model_they_want(flags, message, refused):
    refused(cli.main(["evaluate", *flags]), message)


def test_run_from_elsewhere_sends_no_key_without_trust(copied, tmp_path, monkeypatch, refused):
    monkeypatch.setenv("MY_SECRET", "secret")
    config = read(copied / "config.json")
    config.update(imports=[], reward_fn={"id": "repetition_penalty"})
    prompts, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    prompts.write_text("hello\n")
    with Server(saying(choices=[{"message": {"content": "yes"}}])) as server:
        args = {"base_url": server.url, "model": "m", "api_key_env": "MY_SECRET"}
        config["env"]["args"].update(max_turns=2, partner={"id": "openai", "args": args})
        (copied / "config.json").write_text(json.dumps(config))
        (tmp_path / "feedback.jsonl").touch()
        commands = (
            ["evaluate"],
            ["simulate", "--output", str(output)],
            ["generate", "--input", str(prompts), "--output", str(output)],
            ["select", "--output", str(output)],
            *([command] for command in rows_of_features("COMMANDS_FOR_A_RUN")),
            ["improve", "--feedback", str(tmp_path / "feedback.jsonl")],
        )
        for name, *flags in [command for command in commands if command[0] in COMMANDS]:
            told = (f"base_url: {server.url}, ", "--trust", "env.args.partner.args.api_key_env: MY_SECRET", "dialogues")
            refused(cli.main([name, "--run", str(copied), *flags]), *told)
        assert not server.requests and not output.exists()
        flags = ["--run", str(copied), "--n", "1", "--output", str(output)]
        assert cli.main(["simulate", "--trust", *flags]) == 0
        assert server.requests


def test_loaded_policy_replies_as_the_run_did_wherever_it_lies(copied):
    with pytest.raises(ConfigError, match=r"would execute code .*\(imports: \./own_reward\.py\).*trust=True"):
        rl4dialog.load_policy(copied)
    shutil.rmtree(copied / "checkpoints", ignore_errors=True)
    loaded = rl4dialog.load_policy(str(copied), trust=True)
    predictions = read(copied / "epoch_2_test_split_predictions.json")
    prompts = [prediction["prompt_text"] for prediction in predictions]
    first = loaded.generate(prompts, seed=3)
    assert loaded.generate(prompts, seed=3) == first != loaded.generate(prompts, seed=4)
    greedy = loaded.generate(prompts, do_sample=False, max_new_tokens=4)
    assert greedy == loaded.generate(prompts, batch_size=1, do_sample=False, max_new_tokens=4)
    with pytest.raises(ConfigError, match="did you mean 'top_p'"):
        loaded.generate(prompts, top_q=0.5)
    assert loaded.generate([]) == []


def test_log_probs_are_those_of_one_reply_alone(run):
    loaded = rl4dialog.load_policy(run, trust=True)
    prompts, replies = ["do you like tea ? <EOU>", "snow <EOU>"], ["yes , i do .", ""]
    found = loaded.log_probs(prompts, replies)
    tokenizer, model = loaded.tokenizer, loaded.policy.language_model
    for prompt, reply, own in zip(prompts, replies, found, strict=True):
        prompt_ids = tokenizer(prompt)["input_ids"]
        reply_ids = tokenizer(reply + "<EOU>")["input_ids"][: loaded.lengths.reply]
        logits = model(torch.tensor([prompt_ids + reply_ids])).logits[0, len(prompt_ids) - 1 : -1]
        expected = logits.log_softmax(dim=-1).gather(1, torch.tensor(reply_ids).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(own), expected.detach())
    assert loaded.log_probs([], []) == []
    with pytest.raises(DataError, match="2 prompts but 1 replies"):
        loaded.log_probs(prompts, replies[:1])


def test_scores_are_the_runs_reward_and_its_parts(run):
    loaded = rl4dialog.load_policy(run, trust=True)
    scores = loaded.scores(["a <EOU>", "b <EOU>"], ["yes i do", "no"], [["yes i do"], ["never"]])
    assert scores.parts == {"n_words": [3.0, 1.0], "rouge": [1.0, 0.0]}
    assert scores.total == [5.0, 1.0]


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_values_are_those_of_the_newest_checkpoint(copied, critic):
    config = read(copied / "config.json")
    config["alg"]["policy"]["args"]["critic"] = critic
    (copied / "config.json").write_text(json.dumps(config))
    save_checkpoint(copied, policy_with_critic(copied, critic), 1)
    policy = policy_with_critic(copied, critic)
    save_checkpoint(copied, policy, 12)

    loaded = rl4dialog.load_policy(copied, trust=True)
    found = loaded.values(["do you like tea ? <EOU>", "snow <EOU>"], ["yes , i do .", "no"])
    prompt = torch.tensor([loaded.tokenizer("snow <EOU>")["input_ids"]])
    obs = {"prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt)}
    none = torch.zeros((1, loaded.lengths.reply), dtype=torch.long)
    with torch.no_grad():
        first = policy.predict_values({**obs, "context_ids": none, "context_mask": none}).item()
    assert found[1][0] == pytest.approx(first, abs=1e-5) and first != 0
    assert [len(row) for row in found] == [len(row) for row in loaded.log_probs(["a", "a"], ["yes , i do .", "no"])]
    assert rl4dialog.load_policy(copied, checkpoint=1, trust=True).values(["snow <EOU>"], ["no"])[0] != found[1]


def test_values_of_a_critic_that_reads_secrets_are_refused(copied):
    config = read(copied / "config.json")
    config["alg"]["policy"]["args"]["critic_reads"] = "secret"
    (copied / "config.json").write_text(json.dumps(config))
    save_checkpoint(copied, policy_with_critic(copied), 1)
    loaded = rl4dialog.load_policy(copied, trust=True)
    assert len(loaded.log_probs(["snow <EOU>"], ["no"])[0]) > 0
    with pytest.raises(ModelError, match="the run's critic also reads the partner's secret"):
        loaded.values(["snow <EOU>"], ["no"])


def test_values_of_adapters_are_read_around_the_base_model(copied):
    config = read(copied / "config.json")
    (copied / "config.json").write_text(json.dumps({**config, "lora": {"r": 2}}))
    loaded = rl4dialog.load_policy(copied, trust=True)
    base = build_language_model(loaded.config, loaded.texts)
    policy = loaded._around(base, critic="separate", lora={"r": 2})
    for parameter in policy.critic_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save_checkpoint(copied, policy, 2)
    found = rl4dialog.load_policy(copied, trust=True).values(["snow <EOU>"], ["no"])
    loaded.__dict__["policy_with_critic"] = policy
    assert loaded.values(["snow <EOU>"], ["no"]) == found and found[0][0] != 0


def test_code_of_the_page_works_as_it_stands(copied):
    save_checkpoint(copied, policy_with_critic(copied), 20)
    code = next(block for block in blocks("docs/after_a_run.md", "python") if "load_policy" in block)
    found = {}
    exec(code.replace('"runs/my_project/my_run"', f'"{copied}", trust=True'), found)
    assert len(found["replies"]) == 1 and isinstance(found["replies"][0], str)


def test_missing_critic_checkpoint_and_model_are_errors(copied):
    with pytest.raises(RunFolderError, match=r"contains no critic, so values are not available.*save_every"):
        rl4dialog.load_policy(copied, trust=True).values(["a"], ["b"])
    with pytest.raises(RunFolderError, match=r"has no checkpoint 7 \(there are none\)"):
        rl4dialog.load_policy(copied, checkpoint=7, trust=True)
    save_checkpoint(copied, rl4dialog.load_policy(copied, trust=True).policy, 20)
    with pytest.raises(RunFolderError, match=r"has no checkpoint 'best' \(available iterations: 20\)"):
        rl4dialog.load_policy(copied, checkpoint="best", trust=True)
    with pytest.raises(ModelError, match=r"critic\.safetensors is missing"):
        rl4dialog.load_policy(copied, checkpoint="last", trust=True).values(["a"], ["b"])
    shutil.rmtree(copied / "model")
    with pytest.raises(RunFolderError, match="model is missing: the run is not complete"):
        rl4dialog.load_policy(copied, trust=True)


def test_algorithm_without_critic_or_reward_says_so(run, tmp_path):
    config = make_config(tmp_path, alg__id="rloo", alg__args={"n_generations": 2, "n_steps": 16})
    with pytest.raises(ModelError, match="rloo, has no critic"):
        LoadedPolicy(parse_config(config, "test"), run / "model").values(["a"], ["b"])
    loaded = LoadedPolicy(parse_config({**config, "alg": supervised()}, "test"), run / "model")
    assert loaded.turn_marker == "<EOU>", "from the data, where no run says it"
    with pytest.raises(ConfigError, match="has no reward_fn"):
        loaded.scores(["a"], ["b"])


def masked(run, n_iterations=2, **args):
    """Make a run one of NLPO."""
    config, result = read(run / "config.json"), read(run / "result.json")
    config["alg"]["id"], config["alg"]["args"] = "nlpo", {"n_steps": 16}
    config["alg"]["policy"]["id"] = "maskable_causal_lm_actor_critic_policy"
    config["alg"]["policy"]["args"].update(args)
    (run / "config.json").write_text(json.dumps(config))
    (run / "result.json").write_text(json.dumps({**result, "iterations": n_iterations}))
    return run


def mask_of(policy):
    with policy.mask_model() as model:
        return weights_hash(model)


@pytest.mark.parametrize(
    ("args", "is_first"),
    [
        ({"target_update_iterations": 20}, True),
        ({"target_update_iterations": 2}, False),
        ({"target_update_iterations": 1, "mask_type": "reference_top_p"}, True),
    ],
)
def test_mask_is_the_first_or_the_last_model_by_what_the_run_did(copied, args, is_first, caplog):
    policy = rl4dialog.load_policy(masked(copied, **args), trust=True).policy
    trained = weights_hash(policy.language_model)
    first = read(copied / "provenance.json")["model_hash"]
    assert mask_of(policy) == (first if is_first else trained) and first != trained
    assert "masked by" not in caplog.text


def test_mask_between_two_updates_is_that_of_a_checkpoint(copied, caplog):
    masked(copied, n_iterations=5, target_update_iterations=2)
    policy = rl4dialog.load_policy(copied, trust=True).policy
    assert "masked by the model's own probabilities" in caplog.text
    torch.nn.init.zeros_(policy._learned_mask_model.get_input_embeddings().weight)
    save_checkpoint(copied, policy, 3)
    assert mask_of(rl4dialog.load_policy(copied, trust=True).policy) != mask_of(policy), "of iteration 2, and not of 4"
    save_checkpoint(copied, policy, 4)
    assert mask_of(rl4dialog.load_policy(copied, trust=True).policy) == mask_of(policy)
    assert mask_of(rl4dialog.load_policy(copied, checkpoint=3, trust=True).policy) == mask_of(policy)


def test_replies_to_a_file_are_the_same_after_an_interruption(run, tmp_path, capsys):
    turns = [{"role": "user", "content": "do you like tea ?"}]
    lines = [{"prompt": f"number {n} <EOU>", "id": n} for n in range(4)] + [{"messages": turns}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["generate", "--trust", "--run", str(run), "--input", str(tmp_path / "in.jsonl"), "--batch_size", "2"]
    command += ["--generation_kwargs", "top_k=0", "--output"]
    assert cli.main([*command, str(tmp_path / "out.jsonl")]) == 0
    whole = (tmp_path / "out.jsonl").read_bytes()
    replies = [json.loads(line) for line in whole.splitlines()]
    assert [reply.get("id") for reply in replies] == [0, 1, 2, 3, None]
    assert replies[4]["prompt"] == "do you like tea ? <EOU>" and all("reply" in reply for reply in replies)
    # Cut within the fourth line, which is the second of its batch.
    (tmp_path / "out.jsonl").write_bytes(whole[: len(b"\n".join(whole.splitlines()[:3])) + 9])
    assert cli.main([*command, str(tmp_path / "out.jsonl")]) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert cli.main([*command, str(tmp_path / "out.jsonl")]) == 0
    output = capsys.readouterr().out
    assert "5 replies written" in output and "2 replies written" in output and "is already complete" in output


def test_mistakes_of_generate_are_told(run, tmp_path, refused):
    (tmp_path / "in.txt").write_text("hello\n")
    files = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out")]
    command = ["generate", "--trust", "--run", str(run), *files]
    for flags, message in (
        (["--generation_kwargs", "top_q=1"], "'generation_kwargs.top_q'; did you mean 'top_p'"),
        (["--generation_kwargs", "top_p"], "is not of the form key.path=value"),
        (["--batch_size", "0"], "--batch_size must be at least 1"),
    ):
        refused(cli.main([*command, *flags]), message)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif("push_to_hub" not in COMMANDS, reason="push_to_hub is of a feature")
def test_custom_policy_is_published_only_with_trust(copied, tmp_path, refused):
    (tmp_path / "mine.py").write_text(
        "from rl4dialog.catalog import PolicyRegistry\n"
        "from rl4dialog.policies.causal import CausalLMActorCriticPolicy\n"
        "@PolicyRegistry.register('my_policy')\n"
        "class MyPolicy(CausalLMActorCriticPolicy):\n"
        "    pass\n",
        encoding="utf-8",
    )
    config = read(copied / "config.json")
    config["alg"]["policy"]["id"], config["imports"] = "my_policy", [str(tmp_path / "mine.py")]
    (copied / "config.json").write_text(json.dumps(config), encoding="utf-8")
    publish = ["push_to_hub", "--run", str(copied), "--repo_id", "jane/tea", "--dry_run"]
    refused(cli.main(publish), "'my_policy'", "is custom code", "--trust")
    assert cli.main([*publish, "--trust"]) == 0


def test_python_trains_and_returns_the_trained_policy(tmp_path):
    config = write_config(tmp_path, make_config(tmp_path, **SHORT))
    run = rl4dialog.train(config, {"alg.args.n_epochs": 2, "seed": 1}, tmp_path / "project" / "run")
    assert (run.config.alg.args["n_epochs"], run.config.seed) == (2, 1)
    assert run.metrics == json.loads((tmp_path / "project/run/result.json").read_text())["test"]["after"]
    assert run.model is run.policy.language_model
    assert isinstance(run.generate("hello", seed=1), str)
    assert [run.generate("hello", seed=1)] == run.generate(["hello"], seed=1)
    with pytest.raises(RL4DialogError, match="trains no language model"):
        rl4dialog.train("task_configs/ratings/small_talk.yml", run=tmp_path / "project" / "other")


def test_agent_chats_as_openrls_does(plain_run):
    agent = rl4dialog.load_policy(plain_run)
    assert agent.persona == "", "no prompt of the training has one"
    history = []
    for text in ("do you like tea ?", "tell me more ."):
        reply = agent.chat(text, history)
        assert isinstance(reply, str)
        history += [text, reply]
    prompt = "do you like tea ?<EOU>tell me more . <EOU>"  # context_size is 2
    assert agent.chat("tell me more .", ["all", "do you like tea ?"], seed=3) == agent.generate([prompt], seed=3)[0]
