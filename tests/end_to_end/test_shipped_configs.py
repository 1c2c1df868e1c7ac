"""Every shipped config runs for one iteration, with a tiny model and a few samples in the original form of its data."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf_models
import pytest
from feature_rows import rows_of_features
from generated_pools import SIZES
from gguf_file import write_llama
from runs import lines, trained_run
from stand_in_data import write_original
from stand_ins import bert_config, bert_folder, bert_tokenizer, save_classifier  # noqa: F401 (fixtures)

from rl4dialog.core.config import OnPolicyConfig, TextConfig, kind_of
from rl4dialog.core.yaml_loader import load_yaml

FOLDER = Path(__file__).parents[2] / "task_configs"
CONFIGS = sorted(path for path in FOLDER.glob("*/*.yml") if path.parent.name not in ("accelerate", "benchmarks"))
LIMITS = {"max_prompt_length": 32, "max_episode_length": 8, "max_new_tokens": 8, "min_length": 8}
FEW_SAMPLES = {
    "daily_dialog": {"context_size": 2},
    "dummy_pool": {"n_samples": 8},
    "openers": {"max_size": 8},
    "random_numbers": {"n_samples": 8},
    **{id: {"n_train": 12, "n_val": 6, "n_test": 6} for id in SIZES},
    **rows_of_features("FEW_SAMPLES"),
}


def tiny_model(name, folder):
    """A tiny model in place of one in the name of a config."""
    if name == "smollm2":  # a model with a chat template, in a GGUF file
        folder.mkdir(parents=True, exist_ok=True)
        write_llama(folder / "model.gguf")
        return str(folder / "model.gguf")
    if name == "qwen3":  # whose built-in namesake has no chat template
        tokenizer = gguf_models.qwen2()
        for part in (tokenizer, gguf_models.tiny_model(name, tokenizer, max_position_embeddings=512)):
            part.save_pretrained(folder)
        return str(folder)
    return "builtin/tiny-llama" if name == "stories15m" else f"builtin/tiny-{name}"


def smaller(config, path, data, outside):
    """A shipped config with a tiny model, few samples and short texts; ``outside`` replaces arguments by id."""
    if config["alg"]["id"] == "reward_model":
        unit = {"unit": "reply"} if config["datapool"]["id"] == "rated_dialogues" else {}
        config["datapool"]["args"] = {"dataset": "small_talk", "max_size": 8, **unit}
        config["alg"]["training_args"].update(max_steps=2, per_device_train_batch_size=2)
        return config
    for make_smaller in rows_of_features("SMALLER_CONFIGS"):
        make_smaller(config, data)
    if not issubclass(kind_of(config), TextConfig):
        return config
    in_name, *others = path.stem.split("_")  # or none, as star/ppo.yml
    model_name = tiny_model(in_name if others else config["tokenizer"]["model_name"].rpartition("-")[2], data)
    config["tokenizer"] = {"model_name": model_name, "vocab_size": 300}
    config.get("lora", {}).pop("layers_to_transform", None)  # the tiny model has no such layers
    pool = config["datapool"]
    pool.setdefault("args", {}).update(FEW_SAMPLES.get(pool["id"], {}))
    if pool["id"] not in FEW_SAMPLES.keys() - {"daily_dialog"}:
        pool["args"]["path"] = str(write_original(pool["id"], data))

    alg, evaluation = config["alg"], config["train_evaluation"]
    blocks = [config.get("env", {}).get("args", {}), evaluation.get("generation_kwargs", {})]
    if alg["id"] == "supervised":
        alg["model_name"] = model_name
        alg["training_args"].update(num_train_epochs=1, max_steps=2, per_device_train_batch_size=2)
        blocks.append(alg["generation_kwargs"])
    else:
        alg["policy"]["args"]["model_name"] = model_name
        n_envs = alg["args"].get("n_generations", 2)
        config["env"].update(n_envs=n_envs, vec_env="dummy")
        n_tokens = 4 * n_envs if kind_of(config).has_rollouts else 4  # of a log, iterations have n_steps in all
        alg["args"].update(n_steps=4, **({"batch_size": n_tokens} if "batch_size" in alg["args"] else {}))
        alg["args"].pop("critic_warmup_iters", None)  # more than the one iteration
        evaluation["n_iters"] = 1
        blocks.append(alg["policy"]["args"]["generation_kwargs"])
    if "warm_start" in config:
        config["warm_start"].update(n_epochs=1, batch_size=4, max_samples=4)
    # The system message of a chat, a persona and a goal take up many tokens of a tiny vocabulary.
    limits = LIMITS
    has_goals = pool["id"] == "get_acquainted" or pool["args"].get("learn") == "partner"
    if pool["args"].get("format") == "chat_template" or has_goals:
        limits = {**LIMITS, "max_prompt_length": 200}
        config.get("env", {}).get("args", {})["max_prompt_length"] = 200
    for block in blocks:
        block.update({name: min(limit, block[name]) for name, limit in limits.items() if name in block})

    evaluation.update(eval_batch_size=4, max_eval_samples=4)
    # SPICE needs Java.
    evaluation["metrics"] = [metric for metric in evaluation["metrics"] if metric["id"] != "spice"]
    for component in [*evaluation["metrics"], *([config["reward_fn"]] if "reward_fn" in config else [])]:
        component.setdefault("args", {}).update(outside.get(component["id"], {}))
    if config.get("reward_fn", {}).get("id") == "intent_accuracy":
        config["reward_fn"]["args"].update(synonyms=False, expected_by=None)
    return config


def covering(configs):
    """Few of the configs, in which each id of any of them is behind the same key."""
    pattern = re.compile(r"(?:(\w+):|-)\s*\{?\s*id: ([\w-]+)")
    missing = {path: set(pattern.findall(path.read_text(encoding="utf-8"))) for path in configs}
    chosen = []
    while any(missing.values()):
        chosen.append(max(missing, key=lambda path: len(missing[path])))
        missing = {path: ids - missing[chosen[-1]] for path, ids in missing.items()}
    return chosen


IN_SHORT = covering(CONFIGS)


@pytest.mark.parametrize(
    "path",
    [path if path in IN_SHORT else pytest.param(path, marks=pytest.mark.long) for path in CONFIGS],
    ids=[f"{path.parent.name}/{path.stem}" for path in CONFIGS],
)
def test_config_runs_for_one_iteration(
    tmp_path: Path,
    path: Path,
    bert_folder: str,  # noqa: F811
    save_classifier: Callable[[Sequence[str]], str],  # noqa: F811
) -> None:
    outside = {
        "bert_score": {"model_type": bert_folder, "num_layers": 1},
        "causal_perplexity": {"tokenizer_id": "builtin/tiny-gpt2"},
        "learned_reward": {"model_name": save_classifier(["negative", "positive"])},
        "meteor": {"synonyms": False},
    }
    config = smaller(load_yaml(path), path, tmp_path / "data", outside)
    folder = trained_run(tmp_path, config)
    assert list((folder / "model").rglob("*.safetensors"))
    before, after = lines(folder / "test_split_metrics.jsonl")
    assert before["epoch"] == 0 < after["epoch"] and before["metrics"].keys() == after["metrics"].keys() != set()
    if kind_of(config) is OnPolicyConfig:
        (info,) = lines(folder / "rollout_info.jsonl")
        rounding = 0.01 if config.get("precision") == "bf16" else 1e-5
        assert info["rollout/tokens"] >= 8 and abs(info["rollout/kl"]) < rounding
        assert info["rollout/kl_is_rounding"] == 1
