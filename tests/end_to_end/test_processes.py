"""Several processes do what one does."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from apart import Command, finished, launched, trained
from feature_rows import rows_of_features
from runs import changed, lines, make_config, supervised, write_config
from safetensors.torch import load_file

from rl4dialog.algorithms.on_policy.rollout_mixin import MAX_HALVINGS

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_text_generation.py"
# What accelerate launch says for configs with FSDP and DeepSpeed.
FSDP = {"ACCELERATE_USE_FSDP": "true"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true"}
# All that could differ is decided: nothing is drawn, replies have one length, and a minibatch is all of an iteration.
SAME = {
    "env__n_envs": 4,
    "alg__args__n_steps": 10,
    "alg__args__batch_size": 40,
    "alg__args__n_epochs": 2,
    "alg__kl_div__norm_reward": True,
    "alg__policy__args__generation_kwargs": {"do_sample": False, "min_length": 10, "max_new_tokens": 10},
    "train_evaluation__n_iters": 1,
}


def by_torchrun(tmp_path, config):
    """The same by the launcher itself, in two processes."""
    place = ["--base_path_to_store_results", str(tmp_path), "--project_name", "p", "--experiment_name", "by_2"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(SCRIPT), *place]
    command += ["--config_path", str(write_config(tmp_path / "by_2", config))]
    return subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


MINE = '''
import os
import torch
from rl4dialog import PolicyRegistry, RewardFunctionRegistry
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy


@RewardFunctionRegistry.register("letters")
def letters(prompt_text, gen_text, ref_texts, meta_info):
    """Different for nearly all replies, and of no meaning."""
    return sum(map(ord, prompt_text + gen_text)) % 11 / 10


@PolicyRegistry.register("rounded_by_process")
class RoundedByProcess(CausalLMActorCriticPolicy):
    """Each number of processes rounds in a way of its own, as if on another CPU."""

    def reference_log_probs(self, batch):
        random = torch.Generator().manual_seed(int(os.environ.get("WORLD_SIZE", 1)))
        noise = 2e-7 * torch.randn(batch.response_mask.shape, generator=random)
        return super().reference_log_probs(batch) + noise * batch.response_mask


class Shifted:
    """Greedy, but each environment says something else: groups have an advantage, although nothing is sampled."""

    def generate(self, obs, **kwargs):
        replies = super().generate(obs, **kwargs)
        if not kwargs:  # in a rollout, where all environments speak at once
            ids, ends = replies.response_ids, torch.tensor(sorted(self.end_of_turn.single_token_ids))
            row = int(os.environ.get("RANK", 0)) * len(ids) + torch.arange(len(ids))[:, None]
            shifted = 10 + (ids + row) % 200
            replies.response_ids = torch.where(torch.isin(shifted, ends), ids, shifted)
            replies.log_probs = replies.unmasked_log_probs = self.sequence_log_probs(replies)
        return replies


@PolicyRegistry.register("shifted_causal")
class ShiftedCausal(Shifted, CausalLMActorCriticPolicy):
    """A causal one."""


@PolicyRegistry.register("shifted_seq2seq")
class ShiftedSeq2Seq(Shifted, Seq2SeqLMActorCriticPolicy):
    """An encoder-decoder."""
'''


def plain_config(tmp_path, algorithm, kind, model=None):
    model = model or {"causal": "builtin/tiny-gpt2", "seq2seq": "builtin/tiny-t5"}[kind]
    (tmp_path / "mine.py").write_text(MINE)
    config = make_config(tmp_path, **SAME, alg__id=algorithm, imports=[str(tmp_path / "mine.py")])
    config["reward_fn"] = {"id": "letters"}
    config["alg"]["policy"]["args"]["model_name"] = config["tokenizer"]["model_name"] = model
    mask = "maskable_" if algorithm == "nlpo" else ""
    config["alg"]["policy"]["id"] = f"{mask}{kind}_lm_actor_critic_policy"
    if algorithm == "rloo":
        config["alg"]["args"] |= {"n_generations": 2, "loss_aggregation": "sequence_mean"}
        config["alg"]["policy"]["id"] = f"shifted_{kind}"
    for name in {"a2c": ("batch_size", "n_epochs"), "trpo": ("n_epochs",)}.get(algorithm, ()):
        del config["alg"]["args"][name]
    if algorithm == "ppo" and kind == "causal":
        config["warm_start"] = {"n_epochs": 1, "batch_size": 4}
    return config


@pytest.mark.parametrize(
    ("algorithm", "kind", "n_processes", "variables"),
    [
        ("rloo", "causal", 2, {}),
        ("a2c", "causal", 4, {}),
        pytest.param("trpo", "causal", 2, {}, marks=pytest.mark.long),
        pytest.param("ppo", "causal", 2, FSDP, marks=pytest.mark.long),
        pytest.param("nlpo", "seq2seq", 2, FSDP, marks=pytest.mark.long),
    ],
)
def test_several_processes_give_the_weights_of_one(tmp_path, algorithm, kind, n_processes, variables):
    config = plain_config(tmp_path, algorithm, kind)
    for n, environment in ((1, {}), (n_processes, variables)):
        finished(tmp_path, config, n, **environment)
    rollout, trained_ = assert_same_by_one_and(n_processes, tmp_path)
    assert rollout["rollout/task_reward_std"] > 0.01, "the reward varies"
    assert trained_.get("train/grad_norm", 1) > 1e-4, "the weights have moved"


GAME = {
    "datapool": {"id": "guess_what", "args": {"n_train": 40}},
    "reward_fn": {"id": "letters"},
    "env__args": {"max_prompt_length": 64, "max_episode_length": 10, "max_turns": 3, "partner": {"id": "guess_what"}},
    "alg__args__critic_warmup_iters": 1,
    "alg__args__critic_epochs": 1,
    "alg__args__supervised_coef": 0.1,
    "alg__policy__args__critic": "shared",
    "alg__policy__args__critic_lr_factor": 2,
}
LORA = {"lora": {"r": 2, "lora_alpha": 8}}


FOLLOWS = {
    "alg__policy__args__reference": "ema",
    "alg__policy__args__reference_decay": 0.5,
    "alg__args__learning_rate": 1e-2,
}
PERPLEXITY = {
    "train_evaluation__metrics": [{"id": "causal_perplexity", "args": {"stride": 8}}],
    "alg__policy__args__gradient_checkpointing": True,
    "alg__args__target_kl": 0.01,  # a step of this learning rate is halved
}


def with_itself(**args):
    return {
        "reward_fn": {"id": "regex", "args": {"pattern": "[aeiou]"}},
        "env__args__max_turns": 2,
        "env__args__partner": {"id": "self_play", "args": args},
        "train_evaluation__partner": {"id": "self_play"},
        "alg__kl_div__norm_reward": False,
        "alg__args__n_steps": 20,
    }


@pytest.mark.parametrize(
    ("algorithm", "kind", "changes"),
    [
        pytest.param("ppo", "causal", {**GAME, **LORA}, marks=pytest.mark.long),
        ("ppo", "causal", {**FOLLOWS, **with_itself(snapshot_every=1), **LORA}),
        pytest.param("ppo", "causal", {**FOLLOWS, **PERPLEXITY}, marks=pytest.mark.long),
        pytest.param("nlpo", "causal", {**FOLLOWS, **LORA}, marks=pytest.mark.long),
        pytest.param("ppo", "causal", with_itself(learns="both"), marks=pytest.mark.long),
        pytest.param("rloo", "seq2seq", with_itself(snapshot_every=1), marks=pytest.mark.long),
        pytest.param("ppo", "causal", GAME, marks=pytest.mark.long),
        pytest.param("rloo", "seq2seq", LORA, marks=pytest.mark.long),
    ],
)
def test_shards_give_the_weights_of_two_copies(tmp_path, algorithm, kind, changes):
    """What is drawn in each process is drawn alike, and the references of the supervised loss are."""
    found = []
    for environment in ({}, FSDP):
        config = changed(plain_config(tmp_path, algorithm, kind), {**changes, "train_evaluation.n_iters": 2})
        config.pop("warm_start", None)
        finished(tmp_path, config, 2, **environment)
        folder = tmp_path / "p" / "by_2"
        weights = {path.relative_to(folder): load_file(path) for path in sorted(folder.glob("model/**/*.safetensors"))}
        logs = (lines(folder / f"{name}.jsonl")[-1] for name in ("rollout_info", "training_info", "test_split_metrics"))
        found.append((weights, *logs))
        shutil.rmtree(folder)
    (copies, rollout, trained_, measured), (shards, of_shards, trained_in_shards, measured_in_shards) = found
    assert measured_in_shards["metrics"] == pytest.approx(measured["metrics"], rel=1e-3, abs=1e-5, nan_ok=True)
    assert copies.keys() == shards.keys()
    for path, weights in copies.items():
        for name, weight in weights.items():
            torch.testing.assert_close(shards[path][name], weight, rtol=0, atol=1e-5)
    for key in ("rollout/task_reward", "rollout/kl", "rollout/tokens", "rollout/n_episodes"):
        assert of_shards[key] == pytest.approx(rollout[key], abs=1e-5), key
    assert trained_in_shards["train/grad_norm"] == pytest.approx(trained_["train/grad_norm"], rel=1e-3)
    halved = [each.get("train/step_halvings") for each in (trained_, trained_in_shards)]
    assert halved[0] == halved[1] and (halved[0] is None or 0 < halved[0] < MAX_HALVINGS)


@pytest.mark.long
def test_torchrun_with_an_empty_cache_gives_the_weights_of_one_process(tmp_path):
    config = plain_config(tmp_path, "ppo", "causal", "builtin/tiny-llama")  # not one of those that tests shrink
    process = by_torchrun(tmp_path, config)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    finished(tmp_path, config, 1)
    assert_same_by_one_and(2, tmp_path)


@pytest.mark.long
def test_two_processes_make_no_step_on_rounding(tmp_path):
    """All rewards are 0, and what is left is a KL of rounding, which is another with two processes."""
    config = plain_config(tmp_path, "ppo", "causal")
    config["reward_fn"] = {"id": "regex", "args": {"pattern": "no such word"}}
    config["alg"]["policy"]["id"] = "rounded_by_process"
    for n in (1, 2):
        finished(tmp_path, config, n)
    rollout, trained = assert_same_by_one_and(2, tmp_path)
    assert rollout["rollout/kl_se"] > 0, "its KL is not 0"
    assert rollout["rollout/kl_is_rounding"] == rollout["rollout/constant_rewards"] == 1
    assert trained["train/constant_advantages"] == 1
    assert trained["train/value_loss"] == trained["train/grad_norm"] == 0


def assert_same_by_one_and(n_processes, tmp_path, n_iters=1):
    """Compare weights, replies and log of both runs; returns what several processes logged of rollout and training."""
    folders = [tmp_path / "p" / f"by_{n}" for n in (1, n_processes)]
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in folders)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)
    replies = [(folder / "epoch_0_test_split_predictions.json").read_text() for folder in folders]
    assert replies[0] == replies[1]
    logged = [lines(folder / "rollout_info.jsonl") for folder in folders]
    assert len(logged[0]) == len(logged[1]) == n_iters
    for key in ("rollout/task_reward", "rollout/kl", "rollout/tokens", "rollout/n_episodes", "rollout/values"):
        assert logged[1][0][key] == pytest.approx(logged[0][0][key], abs=1e-6), key
    trained = [lines(folder / "training_info.jsonl")[0] for folder in folders]
    losses = ("train/loss", "train/grad_norm", "train/approx_kl", "train/policy_loss", "train/policy_objective")
    for key in (key for key in losses if key in trained[0]):
        assert trained[1][key] == pytest.approx(trained[0][key], rel=1e-4, abs=1e-6), key
    return logged[1][0], trained[1]


def test_signal_ends_a_process_that_waits_for_another(tmp_path):
    """Torch does not return to Python while it connects, and connects again after a signal."""
    with socket.create_server(("127.0.0.1", 0)) as first_process:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(first_process.getsockname()[1])}
        place |= {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
        config = write_config(tmp_path, plain_config(tmp_path, "rloo", "causal"))
        waiting = Command(["train", "--config_path", str(config)], tmp_path / "waiting", place)
        first_process.settimeout(300)
        with first_process.accept()[0]:
            waiting.send_signal(signal.SIGTERM)
            assert waiting.wait(60) == -signal.SIGTERM


def test_port_in_use_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "0"}
        config = write_config(tmp_path, plain_config(tmp_path, "rloo", "causal"))
        first = Command(["train", "--config_path", str(config)], tmp_path / "first", {**place, "LOCAL_RANK": "1"})
        assert first.wait(60) == 2
        assert f"error: process 0 cannot connect with the others at 127.0.0.1:{port}" in first.errors
        assert "already in use" in first.errors and "Traceback" not in first.errors


@pytest.mark.parametrize("learns", ["both", pytest.param("agent", marks=pytest.mark.long)])
def test_two_processes_talk_with_themselves_as_one(tmp_path, learns):
    config = plain_config(tmp_path, "ppo", "causal")
    n_tokens = 20 if learns == "agent" else 40  # of a conversation: a minibatch is all of an iteration
    config["alg"]["args"] |= {"n_steps": n_tokens, "batch_size": 4 * n_tokens}
    copies = {"snapshot_every": 1} if learns == "agent" else {}
    config["env"]["args"] |= {"max_turns": 2, "partner": {"id": "self_play", "args": {"learns": learns, **copies}}}
    for n in (1, 2):
        finished(tmp_path, config, n)
    assert_same_by_one_and(2, tmp_path)


@pytest.mark.parametrize(("config_of", "n_processes"), [(None, 2), *rows_of_features("TRAINED_IN_EPOCHS")])
def test_several_processes_train_in_epochs_as_one(tmp_path, config_of, n_processes):
    """Batches of five examples, which no number of processes divides, and a last one of fewer."""
    args = {"num_train_epochs": 2, "per_device_train_batch_size": 5, "learning_rate": 1e-2, "adam_epsilon": 1e-5}
    config = config_of(args) if config_of else make_config(tmp_path, alg=supervised(**args))
    for n in (1, n_processes):
        finished(tmp_path, config, n)
    folders = [tmp_path / "p" / f"by_{n}" for n in (1, n_processes)]
    files = [path.relative_to(folders[0]) for path in sorted(folders[0].rglob("model/**/*.safetensors"))]
    assert files
    for file in files:
        one, several = (load_file(folder / file) for folder in folders)
        for name, weight in one.items():
            torch.testing.assert_close(several[name], weight, rtol=0, atol=1e-5)
    (one,), (several,) = (lines(folder / "training_info.jsonl") for folder in folders)
    assert several["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
    assert several["n_steps"] == one["n_steps"]
    for alone, shared in zip(*(lines(folder / "val_split_metrics.jsonl") for folder in folders), strict=True):
        assert shared["metrics"] == pytest.approx(alone["metrics"], rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(with_itself(snapshot_every=2), marks=pytest.mark.long),
        pytest.param(with_itself(learns="both"), marks=pytest.mark.long),
    ],
)
def test_sharded_processes_stay_in_step(tmp_path, changes):
    """Replies of all lengths, several minibatches of several parts, evaluations, and a stop that one process wants."""
    (tmp_path / "by_2").mkdir()
    (tmp_path / "by_2" / "mine.py").write_text(
        "import torch.distributed as dist\n"
        "from rl4dialog import CallbackRegistry\n"
        "@CallbackRegistry.register('second_process')\n"
        "def second_process(locals_, globals_):\n"
        "    return dist.get_rank() == 0 or locals_['self'].iteration < 2\n"
    )
    config = make_config(
        tmp_path,
        imports=["./mine.py"],
        callbacks=[{"id": "save_best_model", "args": {"metric": "reward"}}, {"id": "second_process"}],
        env__n_envs=4,
        alg__args={"n_steps": 20, "batch_size": 30, "micro_batch_size": 1, "n_epochs": 2, "learning_rate": 1e-3},
        alg__policy__args__critic="shared",
        train_evaluation__n_iters=5,
        **changes,
    )
    output = finished(tmp_path, config, 2, **FSDP)
    assert [line["iteration"] for line in lines(tmp_path / "p" / "by_2" / "training_info.jsonl")] == [1, 2, 3]
    assert "stopped after iteration 3 of 5 by second_process: its _on_step returned False" in output
    assert (tmp_path / "p" / "by_2" / "best_model" / "model.safetensors").is_file()


# Dropout, which is drawn differently in each process.
EPOCHS = {
    "alg": supervised(num_train_epochs=2, per_device_train_batch_size=5, learning_rate=1e-2),
    "lora": {"r": 2, "lora_alpha": 8, "lora_dropout": 0.5},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "variables", "n_files"),
    [
        ({}, FSDP, 3),
        (LORA, FSDP, 4),
        ({**FOLLOWS, **with_itself(snapshot_every=1), **LORA}, FSDP, 6),  # with the reference and the partner's copies
        (EPOCHS, {}, 3),
    ],
)
def test_run_of_two_processes_is_resumed_bit_by_bit(tmp_path, changes, variables, n_files):
    config = make_config(tmp_path, env__n_envs=4, alg__policy__args__critic="shared", train_evaluation__save_every=1)
    config = changed(config, changes)
    last = tmp_path / "p" / "by_2" / "checkpoints" / "iteration_000002"
    found = []
    for flags in ((), ("--resume",)):
        shutil.rmtree(last, ignore_errors=True)
        (tmp_path / "p" / "by_2" / "result.json").unlink(missing_ok=True)  # a run that has it is complete
        output = finished(tmp_path, config, 2, *flags, **variables)
        files = sorted(last.rglob("*.safetensors"))
        assert len(files) == n_files, files
        found.append([{name: tensor.tolist() for name, tensor in load_file(path).items()} for path in files])
    assert "Resumed after iteration 1 of 2" in output
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{"train_evaluation__n_iters": 1000}, {"alg": supervised(num_train_epochs=1000)}],
    ids=["ppo", "supervised"],
)
def test_a_killed_process_ends_the_run(tmp_path, changes):
    process = by_torchrun(tmp_path, make_config(tmp_path, **changes))
    progress = tmp_path / "p" / "by_2" / "epoch_1_val_split_predictions.json"
    deadline = time.monotonic() + 200
    while not progress.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.5)
    children = [pid for pid in _children_of(process.pid) if str(SCRIPT) in _command_of(pid)]
    assert len(children) == 2
    os.kill(children[1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert "Signal 9" in output or "lost another process" in output


@pytest.mark.parametrize(
    ("changes", "variables", "message"),
    [
        ({"env__n_envs": 3}, {}, "env.n_envs is 3, which is not divisible by 2 processes"),
        ({"alg__id": "trpo", "alg__args": {"n_steps": 16}}, FSDP, "alg.id: trpo is not supported with FSDP;"),
        ({"alg": supervised()}, FSDP, "alg.id: supervised is not supported with FSDP;"),
        ({"alg": supervised()}, DEEPSPEED, "select FSDP, as in task_configs/accelerate/fsdp.yml"),
    ],
)
def test_what_processes_cannot_do_is_refused(tmp_path, changes, variables, message):
    processes = trained(tmp_path, make_config(tmp_path, **changes), 2, **variables)
    assert all(process.wait() != 0 for process in processes)
    assert message in processes[0].errors


OTHERS = """
import os
import rl4dialog
from rl4dialog import DataPoolRegistry, Sample, TextGenPool

if os.environ.get("DIFFERENT") == "version":
    rl4dialog.__version__ += os.environ.get("RANK", "0")


@DataPoolRegistry.register("mine")
class Mine(TextGenPool):
    @classmethod
    def prepare(cls, split):
        word = os.environ.get("RANK", "0") if os.environ.get("DIFFERENT") == "data" else "two"
        return cls([Sample(f"{split}_{i}", f"say {word}", [word]) for i in range(8)])
"""


@pytest.mark.parametrize(
    ("different", "message"),
    [
        ("version", "process 1 has version.rl4dialog: '0.1.01', process 0 has '0.1.00'; all need the same config"),
        ("data", "process 1 has samples of datapool 'mine' with the hash.train: "),
        ("config", "process 1 has seed: 1, process 0 has 0; all need the same config, files and package versions"),
    ],
)
def test_processes_that_differ_end_with_one_message(tmp_path, different, message):
    (tmp_path / "others.py").write_text(OTHERS)
    config = make_config(tmp_path, imports=[str(tmp_path / "others.py")], datapool={"id": "mine"})
    path = write_config(tmp_path / "config", config)
    arguments = ["train", "--config_path", str(path), "--base_path_to_store_results", str(tmp_path)]
    own = {1: ["--set", "seed=1"]} if different == "config" else {}
    processes = launched(2, arguments, tmp_path / "by_2", {"DIFFERENT": different}, own)
    assert [process.wait() for process in processes] == [2, 2]
    assert message in processes[0].errors and "error" not in processes[1].errors


def _children_of(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
