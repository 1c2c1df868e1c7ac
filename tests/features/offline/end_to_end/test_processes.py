"""Several processes learn from a log as one does."""

import pytest
import torch
from apart import finished
from runs import lines, make_config
from safetensors.torch import load_file


@pytest.mark.parametrize("id", ["ilql", pytest.param("awac", marks=pytest.mark.long)])
def test_two_processes_learn_from_a_log_as_one(tmp_path, id):
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
        finished(tmp_path, config, n)
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
