"""A run's language model with its warm start, which is cached, and the examples of supervised training."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from rl4dialog.core.cache import cached_folder, content_hash
from rl4dialog.core.config import SupervisedConfig, TextConfig
from rl4dialog.core.files import write_json
from rl4dialog.core.pretrained import load_model
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.policies.architecture_check import examine
from rl4dialog.policies.models import check_fits, load_language_model
from rl4dialog.policies.saving import model_key
from rl4dialog.runs.progress import say
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.tokenizer import encoding_key
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.building.texts import Texts, texts_of, toolbox_of
from rl4dialog.training.supervised import ExampleSets, build_example_sets, memorised, warm_start

N_HELD_OUT = 128
"""Number of val samples that tell whether a warm start memorises its data."""


def build_supervised_examples(config: SupervisedConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    val = texts.data.samples("val", config.train_evaluation.max_eval_samples)
    return _examples(config, texts, model_config, val_samples=val, loss_on=config.alg.loss_on)


def build_warm_start_examples(config: TextConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    assert config.warm_start is not None
    samples, n_samples = texts.data.samples("train"), config.warm_start.max_samples
    if n_samples is not None and n_samples < len(samples):
        samples = random.Random(derive_seed(config.seed, "warm_start")).sample(samples, n_samples)
    val = texts.data.samples("val", N_HELD_OUT) if "val" in texts.data.pools else None
    said = {"description": "Warm start", "says_val": False, "loss_on": config.warm_start.loss_on}
    sets = _examples(config, texts, model_config, samples, val_samples=val, **said)
    return replace(sets, val=sets.val or None)  # samples of val can be without references


def build_auxiliary_examples(config: TextConfig, texts: Texts, model_config: PretrainedConfig) -> ExampleSets:
    """Build the examples of the supervised loss in an update, as for a warm start; see there."""
    loss_on = config.warm_start.loss_on if config.warm_start is not None else "reply"
    return _examples(config, texts, model_config, description="Supervised loss", loss_on=loss_on)


def _examples(
    config: TextConfig, texts: Texts, model: PretrainedConfig, samples: list[Sample] | None = None, **settings: Any
) -> ExampleSets:
    """Build examples of samples, by default those of the train split, in the lengths of the run."""
    lengths, samples = texts.lengths, texts.data.samples("train") if samples is None else samples
    settings |= {**conversation_arguments(config, texts), "toolbox": toolbox_of(config, texts)}
    return build_example_sets(
        model,
        texts.tokenizer,
        samples,
        end_of_turn=texts.data.turn_marker,
        max_prompt_length=lengths.prompt if lengths.target is not None else None,
        max_reply_length=lengths.target,
        max_length=lengths.total,
        prompt_truncation_side=lengths.truncation_side,
        whole_turns=lengths.target is None,  # without `env`
        **settings,
    )


def conversation_arguments(config: TextConfig, texts: Texts) -> dict[str, Any]:
    """Arguments of `build_example_sets` for samples with a continuation; empty if there are none."""
    pool, rules = texts.data.pools["train"], ConversationRules()
    if not any((sample.meta_data or {}).get("continuation") for sample, _ in pool):
        return {}
    if config.env is not None:
        args, ends = config.env.args, config.env.args.end_when.model_dump()
        rules = ConversationRules(
            max_partner_length=args.max_partner_length, context_turns=args.context_turns, end_when=ends
        )
    return {"frame": pool.frame(), "rules": rules}


WARM_START = "warm_start"  # cache category
_FACTS_FILE = "truncation.json"  # number of truncated texts and held-out losses, next to a cached warm start
_COUNTS = ("n_prompts_cut", "n_references_cut", "n_left_out")
_logger = logging.getLogger(__name__)


def build_language_model(config: TextConfig, texts: Texts) -> PreTrainedModel:
    """Load or create the language model, and warm-start it if configured. Warm starts are cached by content."""
    auto_class = policy_class(config).auto_class
    fit = (texts.tokenizer, texts.lengths.secret + texts.lengths.prompt, texts.lengths.room)
    model = load_language_model(config.model_name, *fit, auto_class, derive_seed(config.seed, "model"))
    examine(model, config.model_name)
    own = end_of_sequence_ids(texts.tokenizer, model.generation_config)
    if new := EndOfTurn(texts.tokenizer, (), texts.data.turn_marker).eos_token_ids.difference(own):
        model.generation_config.eos_token_id = [*own, *new]  # other programs end replies there, too
    if config.warm_start is None:
        return model
    key = warm_start_key(config, model, texts)
    settings, is_new = config.warm_start, False

    def build(folder: Path) -> None:
        nonlocal is_new
        examples, is_new = build_warm_start_examples(config, texts, model.config), True
        info = warm_start(model, examples, settings, derive_seed(config.seed, "warm_start"))
        model.save_pretrained(folder)
        write_json(folder / _FACTS_FILE, {name: info[name] for name in (*_COUNTS, "held_out_losses")})

    cached = cached_folder(WARM_START, key, build)
    counts = warm_start_facts(cached)
    if problem := memorised(counts.pop("held_out_losses")):
        _logger.warning("%s", problem)
    if not is_new and any(counts.values()):
        n_prompts, n_references, n_left_out = (counts[name] for name in _COUNTS)
        cut = f"{n_prompts} references with a cut prompt, {n_references} without their end, {n_left_out} left out"
        say(f"Warm start, from the cache: {cut}", on_terminals=True)
    warmed = load_model(auto_class, str(cached), "warm-started model", "Remove this folder.", dtype=torch.float32)
    check_fits(warmed, *fit, config.model_name)
    return warmed  # type: ignore[no-any-return]


def warm_start_facts(cached: Path) -> dict[str, Any]:
    """Numbers of truncated texts of a cached warm start, and its ``held_out_losses``."""
    return dict(json.loads((cached / _FACTS_FILE).read_text(encoding="utf-8")))


def warm_start_key(config: TextConfig, model: PreTrainedModel, texts: Texts) -> dict[str, Any]:
    """Cache key of a warm start: everything that affects its result."""
    assert config.warm_start is not None
    samples, form = texts.data.samples("train"), texts.data.pools["train"].dialogue_format
    toolbox = config.env.args.toolbox if config.env is not None else None
    return {
        "model": model_key(model),
        "samples": content_hash(text for sample in samples for text in texts_of(sample)),
        "tokenizer": encoding_key(texts.tokenizer),
        "turn_marker": texts.data.turn_marker,
        "lengths": dataclasses.asdict(texts.lengths),
        "settings": config.warm_start.model_dump(),
        "seed": config.seed,
        **{name: dataclasses.asdict(each) for name, each in conversation_arguments(config, texts).items()},
        **(form.key if form is not None else {}),
        **({"toolbox": toolbox.model_dump()} if toolbox is not None else {}),
    }
