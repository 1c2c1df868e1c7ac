"""Several processes do what one does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import lines, make_config, write_config
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_text_generation.py"
# What accelerate launch says for configs with FSDP and DeepSpeed.
FSDP = {"ACCELERATE_USE_FSDP": "true"}
DEEPSPEED = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "DS_ACCELERATOR": "cpu"}
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")
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


def launch(tmp_path: Path, config: dict[str, Any], n_processes: int, *flags: str, **kwargs: Any) -> subprocess.Popen:
    (tmp_path / f"by_{n_processes}").mkdir(exist_ok=True)
    arguments = [
        *("--config_path", str(write_config(tmp_path / f"by_{n_processes}", config))),
        *("--base_path_to_store_results", str(tmp_path)),
        *("--project_name", "p", "--experiment_name", f"by_{n_processes}"),
        *flags,
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n_processes)]
    command = [sys.executable, *(launcher if n_processes > 1 else []), str(SCRIPT), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


MINE = '''
import os
import torch
from rl4dialog import PolicyRegistry, RewardFunctionRegistry
from rl4dialog.policies.causal import CausalLMActorCriticPolicy


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
'''


def plain_config(tmp_path: Path, algorithm: str, kind: str) -> dict[str, Any]:
    model = {"causal": "builtin/tiny-gpt2", "seq2seq": "builtin/tiny-t5"}[kind]
    (tmp_path / "mine.py").write_text(MINE)
    config = make_config(tmp_path, **SAME, alg__id=algorithm, imports=[str(tmp_path / "mine.py")])
    config["reward_fn"] = {"id": "letters"}
    config["alg"]["policy"]["args"]["model_name"] = config["tokenizer"]["model_name"] = model
    mask = "maskable_" if algorithm == "nlpo" else ""
    config["alg"]["policy"]["id"] = f"{mask}{kind}_lm_actor_critic_policy"
    if algorithm == "rloo":
        config["alg"]["args"] |= {"n_generations": 2, "loss_aggregation": "sequence_mean", "mask_truncated": True}
    if algorithm == "ppo" and kind == "causal":
        config["warm_start"] = {"n_epochs": 1, "batch_size": 4}
    return config


@pytest.mark.parametrize(
    ("algorithm", "kind", "variables"),
    [
        ("ppo", "causal", {}),
        ("rloo", "causal", {}),
        pytest.param("ppo", "causal", FSDP, marks=pytest.mark.long),
        ("nlpo", "seq2seq", FSDP),
        pytest.param("ppo", "causal", DEEPSPEED, marks=needs_deepspeed),
    ],
)
def test_two_processes_give_the_weights_of_one(
    tmp_path: Path, algorithm: str, kind: str, variables: dict[str, str]
) -> None:
    rollout, _ = assert_same_by_one_and_two(tmp_path, plain_config(tmp_path, algorithm, kind), variables)
    assert rollout["rollout/task_reward_std"] > 0.01, "the reward varies"


def test_two_processes_make_no_step_on_rounding(tmp_path: Path) -> None:
    """All rewards are 0, and what is left is a KL of rounding, which is another with two processes."""
    config = plain_config(tmp_path, "ppo", "causal")
    config["reward_fn"] = {"id": "regex", "args": {"pattern": "no such word"}}
    config["alg"]["policy"]["id"] = "rounded_by_process"
    rollout, trained = assert_same_by_one_and_two(tmp_path, config, {})
    assert rollout["rollout/kl_se"] > 0, "its KL is not 0"
    assert rollout["rollout/kl_is_rounding"] == rollout["rollout/constant_rewards"] == 1
    assert trained["train/constant_advantages"] == 1
    assert trained["train/value_loss"] == trained["train/grad_norm"] == 0


def assert_same_by_one_and_two(
    tmp_path: Path, config: dict[str, Any], variables: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train twice, compare weights, replies and log; returns what two processes logged of rollout and training."""
    for n in (1, 2):
        process = launch(tmp_path, config, n, env={**os.environ, **(variables if n > 1 else {})})
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
    one, two = (load_file(tmp_path / "p" / f"by_{n}" / "model" / "model.safetensors") for n in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-5)
    replies = [(tmp_path / "p" / f"by_{n}" / "epoch_0_test_split_predictions.json").read_text() for n in (1, 2)]
    assert replies[0] == replies[1]
    logged = [lines(tmp_path / "p" / f"by_{n}" / "rollout_info.jsonl") for n in (1, 2)]
    assert len(logged[0]) == len(logged[1]) == 1
    for key in ("rollout/task_reward", "rollout/kl", "rollout/tokens", "rollout/n_episodes", "rollout/values"):
        assert logged[1][0][key] == pytest.approx(logged[0][0][key], abs=1e-6), key
    trained = [lines(tmp_path / "p" / f"by_{n}" / "training_info.jsonl")[0] for n in (1, 2)]
    for key in ("train/loss", "train/grad_norm", "train/approx_kl"):
        assert trained[1][key] == pytest.approx(trained[0][key], rel=1e-4, abs=1e-6), key
    return logged[1][0], trained[1]


@pytest.mark.parametrize("id", ["ilql", pytest.param("awac", marks=pytest.mark.long)])
def test_two_processes_learn_from_a_log_as_one(tmp_path: Path, id: str) -> None:
    """Several minibatches, which the processes share; in the second iteration the log begins anew."""
    policy = {
        "id": "value_guided_causal_lm_policy",
        "args": {"model_name": "builtin/tiny-gpt2", "generation_kwargs": {"max_new_tokens": 6}},
    }
    args = {"n_steps": 256, "batch_size": 64, "learning_rate": 1e-3}
    config = make_config(
        tmp_path,
        alg={"id": id, "args": args, "policy": policy},
        reward_fn={"id": "regex", "args": {"pattern": "e"}},
        train_evaluation__max_eval_samples=2,
    )
    for n in (1, 2):
        process = launch(tmp_path, config, n, env=dict(os.environ))
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
    for name in ("model.safetensors", *(["value_guidance.safetensors"] if id == "ilql" else [])):
        one, two = (load_file(tmp_path / "p" / f"by_{n}" / "model" / name) for n in (1, 2))
        for key, weight in one.items():
            torch.testing.assert_close(two[key], weight, rtol=0, atol=1e-5)
    for file in ("rollout_info.jsonl", "training_info.jsonl"):
        logged = [lines(tmp_path / "p" / f"by_{n}" / file) for n in (1, 2)]
        assert len(logged[0]) == len(logged[1]) == 2
        for alone, shared in zip(*logged, strict=True):
            for key in (key for key in alone if key.startswith(("train/", "rollout/")) and alone[key] is not None):
                assert shared[key] == pytest.approx(alone[key], rel=1e-4, abs=1e-5), key


@pytest.mark.parametrize("variables", [FSDP, pytest.param(DEEPSPEED, marks=needs_deepspeed)])
def test_sharded_processes_stay_in_step(tmp_path: Path, variables: dict[str, str]) -> None:
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
    )
    process = launch(tmp_path, config, 2, env={**os.environ, **variables})
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert [line["iteration"] for line in lines(tmp_path / "p" / "by_2" / "training_info.jsonl")] == [1, 2, 3]
    assert "stopped after iteration 3 of 5 by second_process: its _on_step returned False" in output
    assert (tmp_path / "p" / "by_2" / "best_model" / "model.safetensors").is_file()


@pytest.mark.long
def test_sharded_run_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    config = make_config(tmp_path, env__n_envs=4, alg__policy__args__critic="shared", train_evaluation__save_every=1)
    environment = {**os.environ, **FSDP, "OMP_NUM_THREADS": "1"}
    last = tmp_path / "p" / "by_2" / "checkpoints" / "iteration_000002"
    found = []
    for flags in ((), ("--resume",)):
        shutil.rmtree(last, ignore_errors=True)
        (tmp_path / "p" / "by_2" / "result.json").unlink(missing_ok=True)  # a run that has it is complete
        process = launch(tmp_path, config, 2, *flags, env=environment)
        output, _ = process.communicate(timeout=500)
        assert process.returncode == 0, output
        files = sorted(last.rglob("*.safetensors"))
        assert [path.name for path in files] == ["critic.safetensors", "model.safetensors", "optimizer.safetensors"]
        found.append([{name: tensor.tolist() for name, tensor in load_file(path).items()} for path in files])
    assert "Resumed after iteration 1 of 2" in output
    assert found[0] == found[1]


POISONED = '''
import math, os
import torch
from rl4dialog import PolicyRegistry
from rl4dialog.policies.causal import CausalLMActorCriticPolicy

@PolicyRegistry.register("poisoned")
class Poisoned(CausalLMActorCriticPolicy):
    """Makes a NaN gradient in the second training pass of the second process."""

    n_passes = 0

    def _outputs(self, hidden_of, ids=None):
        logits, values = super()._outputs(hidden_of, ids)
        if torch.is_grad_enabled():
            self.n_passes += 1
            if self.n_passes == 2 and os.environ["RANK"] == "1":
                logits = logits * math.nan
        return logits, values
'''


@needs_deepspeed
def test_deepspeed_leaves_out_a_step_without_finite_gradient(tmp_path: Path) -> None:
    check_that_a_step_is_left_out(tmp_path, DEEPSPEED)


def check_that_a_step_is_left_out(tmp_path: Path, variables: dict[str, str]) -> None:
    """In all processes, though the gradient is NaN in one of them only."""
    (tmp_path / "mine.py").write_text(POISONED)
    config = make_config(
        tmp_path,
        imports=[str(tmp_path / "mine.py")],
        env__n_envs=4,
        alg__args={"n_steps": 20, "batch_size": 30, "n_epochs": 2, "learning_rate": 1e-3},
        alg__policy__id="poisoned",
    )
    process = launch(tmp_path, config, 2, env={**os.environ, **variables})
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    skipped = [line["train/skipped_steps"] for line in lines(tmp_path / "p" / "by_2" / "training_info.jsonl")]
    assert skipped == [1, 0]
    weights = load_file(tmp_path / "p" / "by_2" / "model" / "model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_a_killed_process_ends_the_run(tmp_path: Path) -> None:
    process = launch(tmp_path, make_config(tmp_path, train_evaluation__n_iters=1000), 2)
    progress = tmp_path / "p" / "by_2" / "training_info.jsonl"
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


def test_what_fsdp_cannot_do_is_refused(tmp_path: Path) -> None:
    process = launch(tmp_path, make_config(tmp_path, lora={"r": 2}), 2, env={**os.environ, **FSDP})
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "lora is not supported with FSDP" in output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env__n_envs": 3}, "env.n_envs is 3, which is not divisible by 2 processes"),
        ({"alg__id": "trpo", "alg__args": {"n_steps": 16}}, "alg.id: trpo trains in one process"),
    ],
)
def test_what_processes_cannot_share_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    process = launch(tmp_path, make_config(tmp_path, **changes), 2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert message in output


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
