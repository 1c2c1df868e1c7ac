"""Check that every config of a folder runs here, with tiny models and data; prints one line per config.

    python scripts/check_configs.py RL4LMs/scripts/training/task_configs --notes

Nothing is downloaded: model names, data paths, and all that rewards and metrics load (models, SPICE's program, WordNet
if it is missing) get stand-ins. Everything else is checked unchanged by ``--dry_run``; then two iterations run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import script
import torch
import yaml
from stand_in_data import write_dialogues, write_original
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.cli import main_of
from rl4dialog.core.config import TextConfig, kind_of, parse_config
from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.types import is_whole_number
from rl4dialog.core.yaml_loader import expand_variants, load_yaml
from rl4dialog.scores.meteor import MeteorMetric
from rl4dialog.training.tiny_bert import TINY_BERT

N_ITERATIONS = 2
_WITHOUT_FILES = (
    *("comment_reply", "dummy_pool", "get_acquainted", "guess_the_picture", "guess_what", "openers", "random_numbers"),
    *("random_walks", "small_talk", "table_booking", "task_dialogues", "wordle"),
)
_TINY = {
    "builtin/tiny-llama": ("llama", "smollm", "stories", "mistral", "qwen", "gemma"),
    "builtin/tiny-bart": ("bart", "blender", "pegasus"),
}
"""Built-in models by words in the names of models with the same names of layers; the others are GPT-2 or T5."""
_SHORT = {"max_prompt_length": 32, "max_episode_length": 8, "max_new_tokens": 8, "min_length": 2, "max_length": 40}
_FEW = {"n_samples": 8, "context_size": 2}


@dataclass
class ConfigReport:
    """The result for a config: what was replaced, notes of its loading, and the step that failed, with its error."""

    name: str
    stand_ins: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: str = ""
    error: str = ""

    def __str__(self) -> str:
        replaced = f" (stand-ins: {', '.join(self.stand_ins)})" if self.stand_ins else ""
        if self.failed:
            return f"{self.name}: {self.failed} failed{replaced}: {self.error}"
        return f"{self.name}: --dry_run ok, {N_ITERATIONS} iterations ok, {len(self.notes)} notes{replaced}"


def check_configs(
    folder: Path, train: Callable[[list[str]], int], say: Callable[[ConfigReport], None]
) -> list[ConfigReport]:
    """Check every ``.yml`` file in a folder, by a function from arguments of ``train`` to exit code."""
    paths = sorted(path for path in folder.rglob("*.yml") if path.is_file())
    if not paths:
        raise ConfigError(f"{folder} contains no .yml files; pass a folder of configs")
    reports = []
    with tempfile.TemporaryDirectory(prefix="rl4dialog-configs-") as scratch:
        outside = Outside(Path(scratch))
        for number, path in enumerate(paths):
            report = ConfigReport(str(path.relative_to(folder)), failed="reading")
            try:
                _check(path, Path(scratch) / f"config_{number}", outside, train, report)
            except RL4DialogError as error:
                report.error = str(error)
            except Exception as error:  # any failure must not stop the check of the other configs
                report.error = " ".join(f"{type(error).__name__}: {error}".split())
            say(report)
            reports.append(report)
    return reports


def stand_in_config(path: Path, folder: Path, outside: Outside, report: ConfigReport) -> dict[str, Any]:
    """Return a config with stand-ins for everything that it would load; they are noted in the report."""
    with contextlib.redirect_stderr(io.StringIO()), _quiet():
        config, _ = expand_variants(load_yaml(path), 0)
        parse_config(config, path.name)  # ensures that the keys to replace exist
        folder.mkdir(exist_ok=True)
        if config["alg"]["id"] == "reward_model":
            config = _with_generated_ratings(config)
        elif issubclass(kind_of(config), TextConfig):
            config = outside.replace(config, folder / "data", report.stand_ins)
        else:
            for key, id in (("speaker", "scripted"), ("partner", "facts")):
                if "model_name" in config.get(key, {}).get("args", {}):
                    report.stand_ins.append(config[key]["id"])
                    config[key] = {"id": id}
        if "path" in config.get("task", {}).get("args", {}) and config["task"]["id"] == "camrest":
            config["task"]["args"]["path"] = str(write_original("camrest", folder / "task"))
    return config


def _check(path: Path, folder: Path, outside: Outside, train: Callable[[list[str]], int], report: ConfigReport) -> None:
    config = stand_in_config(path, folder, outside, report)
    for step, what, flags in (("--dry_run", config, ["--dry_run"]), ("iterations", shortened(config), [])):
        report.failed = step
        file = folder / "config.yml"
        file.write_text(yaml.safe_dump(what, sort_keys=False), encoding="utf-8")
        arguments = ["--config_path", str(file), "--base_path_to_store_results", str(folder / "runs"), *flags]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), _quiet():
            code = train(arguments)
        lines = output.getvalue().splitlines()
        if flags:
            report.notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
        if code:
            report.error = next((line for line in reversed(lines) if line.startswith("error: ")), f"exit code {code}")
            return
    report.failed = ""


def _with_generated_ratings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a reward model with the built-in model and generated judgements."""
    config = copy.deepcopy(config)
    config["tokenizer"]["model_name"] = config["alg"]["model_name"] = TINY_BERT
    unit = {"unit": "reply"} if DataPoolRegistry.takes(config["datapool"]["id"], "unit") else {}
    config["datapool"]["args"] = {"dataset": "small_talk", "max_size": 8, **unit}
    return config


@contextlib.contextmanager
def _quiet() -> Any:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


class Outside:
    """Stand-ins for external models and data, created on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_wordnet: bool | None = None

    def replace(self, config: dict[str, Any], data: Path, stand_ins: list[str]) -> dict[str, Any]:
        """Return a valid config with tiny models, with data in a folder, and with stand-ins, whose ids are noted."""
        data.mkdir(parents=True)
        config = copy.deepcopy(config)
        model_name = _tiny_model(config)
        config["tokenizer"]["model_name"] = model_name
        config["tokenizer"].setdefault("vocab_size", 300)
        alg = config["alg"]
        (alg["policy"]["args"] if "policy" in alg else alg)["model_name"] = model_name
        (config.get("lora") or {}).pop("layers_to_transform", None)  # a tiny model has few layers
        pool = config["datapool"]
        args = pool.get("args") or {}
        DataPoolRegistry.resolve(pool["id"])
        if args.get("format") == "chat_template":  # which belongs to the tokenizer
            args["format"] = "eou"
            stand_ins.append("chat_template")
        if pool["id"] == "daily_dialog":
            n_before = args.get("context_size", 5)
            n_turns = 3 + (n_before if is_whole_number(n_before, at_least=0) else 0)
            pool["args"] = {**args, "path": str(write_dialogues(data, n_turns=n_turns))}
        elif pool["id"] not in _WITHOUT_FILES:
            pool["args"] = {**args, "path": str(write_original(pool["id"], data))}
        metrics = config["train_evaluation"].get("metrics") or []
        for component in [*metrics, *filter(None, [config.get("reward_fn")])]:
            self._replace_in(component, stand_ins)
        return config

    def _replace_in(self, component: dict[str, Any], stand_ins: list[str]) -> None:
        id, args = component["id"], component.get("args") or {}
        if id == "spice":
            component["id"], changed = "cider", {}
        elif id == "bert_score":
            changed = {"model_type": save_bert(self._folder / "bert"), "num_layers": 1}
        elif id == "learned_reward":
            changed = {"model_name": save_bert(self._folder / "bert")}
        elif id == "causal_perplexity" and "tokenizer_id" in args:
            changed = {"tokenizer_id": "builtin/tiny-gpt2"}
        elif id == "common_gen_preference_model":
            changed = {"model_name": save_t5(self._folder / "t5")}
        elif id == "intent_accuracy" and {"model_name", "expected_by"} & args.keys():
            changed = {"model_name": "builtin/tiny-bert"} if "model_name" in args else {}
            changed |= {"expected_by": None} if "expected_by" in args else {}
        elif id in ("meteor", "intent_accuracy") and "synonyms" not in args and not self.has_wordnet():
            changed = {} if id == "intent_accuracy" and "intent_coeff" not in args else {"synonyms": False}
        else:
            return
        component["args"] = {**args, **changed}
        if id not in stand_ins:
            stand_ins.append(id)

    def has_wordnet(self) -> bool:
        """Whether METEOR can be computed with WordNet on this machine."""
        if self._has_wordnet is None:
            try:
                MeteorMetric()
                self._has_wordnet = True
            except RL4DialogError:
                self._has_wordnet = False
        return self._has_wordnet


def _tiny_model(config: Mapping[str, Any]) -> str:
    """Name of the built-in model with the architecture of a config."""
    alg = config["alg"]
    supervised = "policy" not in alg
    name = (alg if supervised else alg["policy"]["args"])["model_name"].lower()
    is_seq2seq = alg["model_type"] == "seq2seq" if supervised else "seq2seq" in alg["policy"]["id"]
    found = [tiny for tiny, words in _TINY.items() if any(word in name for word in words)]
    fits = [tiny for tiny in found if (tiny == "builtin/tiny-bart") == is_seq2seq]
    return fits[0] if fits else "builtin/tiny-t5" if is_seq2seq else "builtin/tiny-gpt2"


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with two iterations of a few short replies or steps."""
    config = copy.deepcopy(config)
    if config["alg"]["id"] == "reward_model":
        config["alg"]["training_args"].update(max_steps=N_ITERATIONS, per_device_train_batch_size=2)
        return config
    if not issubclass(kind_of(config), TextConfig):
        config["train_evaluation"].update(n_iters=N_ITERATIONS, n_eval_episodes=1)
        args = config["alg"].get("args") or {}
        args.update(_at_most(args, {"learning_starts": 0, "target_update_interval": 64, "estimator_warmup_iters": 1}))
        return config
    alg, evaluation = config["alg"], config["train_evaluation"]
    blocks = [config["datapool"].get("args"), evaluation.get("generation_kwargs")]
    evaluation.update(eval_batch_size=4, max_eval_samples=4, eval_every=1)
    if "policy" not in alg:
        alg["training_args"].update(max_steps=N_ITERATIONS, per_device_train_batch_size=2)
        blocks.append(alg.get("generation_kwargs"))
    else:
        evaluation["n_iters"] = N_ITERATIONS
        if config.get("env"):
            config["env"].update(n_envs=(alg.get("args") or {}).get("n_generations", 2), vec_env="dummy")
            blocks.append(config["env"]["args"])
        args = alg.get("args") or {}
        args.pop("critic_warmup_iters", None)  # the policy is to be trained
        n_tokens = 8 if kind_of(config).has_rollouts else 4  # at most those of an iteration
        alg["args"] = {**args, "n_steps": 4, **({"batch_size": n_tokens} if "batch_size" in args else {})}
        blocks.append(alg["policy"]["args"].get("generation_kwargs"))
    limits = {**_SHORT, **_FEW}
    if config["datapool"]["id"] == "get_acquainted":
        del limits["max_prompt_length"]  # prompts begin with a persona
    for block in filter(None, blocks):
        block.update(_at_most(block, limits))
    return config


def _at_most(block: Mapping[str, Any], limits: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return [(name, min(limit, block[name])) for name, limit in limits.items() if isinstance(block.get(name), int)]


def save_bert(folder: Path) -> str:
    """Save a classifier with two labels, whose encoder also works for BERTScore; returns its folder."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "i", "the", "you", "to", "is", "of"]
    frame = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    size: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 2}
    config = BertConfig(vocab_size=len(words), intermediate_size=16, **size)
    return _save(folder, words, frame, special, BertForSequenceClassification, config)


def save_t5(folder: Path) -> str:
    """Save an encoder-decoder whose vocabulary contains "good" and "bad"; returns its folder."""
    words = ["<pad>", "</s>", "<unk>", "good", "bad"]
    frame = {"single": "$A </s>", "special_tokens": [("</s>", 1)]}
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    size: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    size["decoder_start_token_id"] = 0
    config = T5Config(vocab_size=len(words), **size)
    return _save(folder, words, frame, special, T5ForConditionalGeneration, config)


def _save(
    folder: Path, words: list[str], frame: dict[str, Any], special: dict[str, str], model_class: Any, config: Any
) -> str:
    if not folder.is_dir():
        vocabulary = {word: i for i, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(**frame)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model_class(config).save_pretrained(folder)
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder of .yml files")
    parser.add_argument("--notes", action="store_true", help="also print the notes from loading each config")
    args = parser.parse_args()

    def print_report(report: ConfigReport) -> None:
        print(report, flush=True)
        for note in report.notes if args.notes else ():
            print(f"    {note}", flush=True)

    reports = check_configs(args.folder, partial(main_of, "train"), print_report)
    n_fine = sum(not report.failed for report in reports)
    print(f"{n_fine} of {len(reports)} configs pass --dry_run and run two iterations")
    return 0 if n_fine == len(reports) else 1


if __name__ == "__main__":
    script.run(main)
