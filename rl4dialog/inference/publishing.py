"""Publishes a run's model on the Hugging Face Hub, with a card: description, effect of training, and how to load it.

`merged_adapters` tells whether a published model is the one that was trained. Earlier versions merged adapters of a
head or an embedding into the weights that both share, so each got the changes of the other. The adapters beside the
model show what was trained.
"""

from __future__ import annotations

import copy
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import OfflineConfig, OnPolicyConfig, PolicyRunConfig, TextConfig
from rl4dialog.core.errors import HubError, RunFolderError
from rl4dialog.core.files import write_text
from rl4dialog.core.pretrained import PRETRAINED, load_model
from rl4dialog.inference.loading import check_without_values, model_folder, read_text_config
from rl4dialog.policies.lora import ADAPTER_FOLDER
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.value_guided import GUIDANCE_FILES
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.run_folder import MODEL_FOLDER, read_result
from rl4dialog.runs.summary import format_number, is_headline
from rl4dialog.training.building.policy import is_guided, policy_class
from rl4dialog.training.doctor.subject import Finding

CARD_FILE = "README.md"
_TEMPLATE = Path(__file__).with_name("model_card.txt")


def model_card(repo_id: str, config: TextConfig, result: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """The card of a run's model, in Markdown with metadata."""
    name, before, after = repo_id.rpartition("/")[2], result["test"]["before"], result["test"]["after"]
    shared = _without_local_paths(config.model_dump(mode="json", exclude_defaults=True))
    card = ModelCard.from_template(
        _metadata(name, config, after),
        template_path=str(_TEMPLATE),
        name=name,
        repo_id=repo_id,
        auto_class=policy_class(config).auto_class.__name__,
        kind="offline" if isinstance(config, OfflineConfig) else "rl" if isinstance(config, OnPolicyConfig) else "",
        is_guided=is_guided(config),
        facts=dict(_facts(config, result, provenance)),
        metrics=[(key, *map(format_number, (before.get(key), after[key]))) for key in after if is_headline(key)],
        prompts=prompt_format(config, provenance),
        config=yaml.safe_dump(shared, sort_keys=False, allow_unicode=True),
        versions=provenance.get("versions"),
    )
    return str(card)


def _metadata(name: str, config: TextConfig, scores: Mapping[str, float | None]) -> ModelCardData:
    task = "text-generation" if "CausalLM" in policy_class(config).auto_class.__name__ else "text2text-generation"
    dataset = config.datapool.args.get("dataset_id")
    dataset = _public_name(dataset) if isinstance(dataset, str) else None
    of_test: dict[str, Any] = {
        "task_type": task,
        "dataset_type": dataset or config.datapool.id,
        "dataset_name": config.datapool.id,
    }
    results = [
        EvalResult(**of_test, dataset_split="test", metric_type=key, metric_name=key, metric_value=value)
        for key, value in scores.items()
        if value is not None and is_headline(key)
    ]
    kind = "reinforcement-learning" if config.has_rollouts else "fine-tuned"
    if isinstance(config, OfflineConfig):
        learns_rewards = OfflineAlgorithmRegistry.resolve(config.alg.id).needs_rewards
        kind = "offline-reinforcement-learning" if learns_rewards else "fine-tuned"
    return ModelCardData(
        model_name=name,
        library_name="transformers",
        pipeline_tag=task,
        tags=["rl4dialog", kind, config.alg.id],
        base_model=_public_name(config.model_name),
        datasets=[dataset] if dataset else None,
        # The results of a guided policy are not those of its language model, which is published.
        eval_results=None if is_guided(config) else results or None,
    )


def _facts(
    config: TextConfig, result: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Iterator[tuple[str, str | int]]:
    yield "base model", f"`{_shortened(config.model_name)}`"
    yield from (("algorithm", f"`{config.alg.id}`"), ("data", f"`{config.datapool.id}`"))
    if isinstance(config, OnPolicyConfig):
        yield "reward", f"`{config.reward_fn.id}`"
    if isinstance(config, PolicyRunConfig):
        yield "iterations", result["iterations"]
    yield "seed", config.seed
    if commit := ((provenance.get("git") or {}).get("package") or {}).get("commit"):
        yield "rl4dialog commit", f"`{commit}`"


def prompt_format(config: TextConfig, provenance: Mapping[str, Any]) -> str:
    """Describe the prompts of a run's model, as a sentence."""
    marker = provenance.get("turn_marker")
    if config.datapool.args.get("format") == "chat_template":
        return "Prompts are formatted with the tokenizer's chat template."
    if marker:
        return f"Every utterance of a prompt ends with `{marker}`, which also ends the reply."
    return "Prompts are plain texts in the format of the datapool."


def _public_name(name: str) -> str | None:
    """A hub id; ``None`` for a model with random weights or a local path."""
    if name in PRETRAINED:
        return PRETRAINED[name].hub_id
    is_local = name.startswith(("builtin/", ".", "~", "/")) or name.count("/") > 1 or Path(name).exists()
    return None if is_local else name


def _shortened(text: str) -> str:
    """Shorten a local path to its last part, which is all that others can use."""
    is_path = os.path.isabs(text) or text.startswith(("~", "./", "../"))
    return f".../{Path(text).name}" if is_path else text


def _without_local_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_local_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_local_paths(inner) for inner in value]
    return _shortened(value) if isinstance(value, str) else value


def push_to_hub(
    run: Path, repo_id: str, private: bool = False, dry_run: bool = False, prior_only: bool = False, trust: bool = False
) -> None:
    """Write a model card into a run's ``model/``, and upload the folder."""
    run, console = run.expanduser(), Console()
    result, config, folder = read_result(run), read_text_config(run, trust), run / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is missing; there is no model to publish")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise HubError(f"--repo_id {repo_id!r} is not a valid repository name: {error}") from error
    if repo_id.count("/") != 1:
        raise HubError(f"--repo_id must be user/name, not {repo_id!r}")
    check_without_values(config, run, prior_only, "which transformers does not load", "publish")
    write_text(folder / CARD_FILE, model_card(repo_id, config, result, read_provenance(run)))
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in GUIDANCE_FILES):
        size = math.ceil(path.stat().st_size / 1024)
        console.print(Text(f"{size:10,} KiB  {path.relative_to(folder).as_posix()}"), soft_wrap=True)
    if dry_run:
        said = f"Dry run: nothing was uploaded. Model card: {folder / CARD_FILE}"
    else:
        said = f"Published: {_upload(folder, repo_id, private)}"
    console.print(Text(said), soft_wrap=True)


def _upload(folder: Path, repo_id: str, private: bool) -> Any:
    if get_token() is None:
        raise HubError("not logged in to the Hugging Face Hub; log in with: hf auth login (or set HF_TOKEN)")
    api, ignored = HfApi(), list(GUIDANCE_FILES)
    try:
        # `None` keeps the visibility of an existing repository, and uses the account's default for a new one.
        url = api.create_repo(repo_id, private=private or None, exist_ok=True)
        message = "Model and model card by rl4dialog"
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, ignore_patterns=ignored)
    except HfHubHTTPError as error:
        raise HubError(f"the hub refused {repo_id!r}: {_one_line(error)}") from error
    except Exception as error:  # connection errors of httpx, of requests, and of the hub's offline mode
        raise HubError(f"the hub cannot be reached, so {repo_id!r} was not published: {_one_line(error)}") from error
    return url


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


_N_TEXTS, _N_TOKENS = 8, 16  # random texts, to measure with


@torch.no_grad()
def merged_adapters(run: Path) -> Finding:
    """Check that adapters were merged only into weights that no other layer shares. No code of the run is run."""
    config = read_text_config(run)
    folder = model_folder(run)
    if not (folder / ADAPTER_FOLDER).is_dir():
        return Finding("pass", f"{folder} has the weights that were trained: there are no adapters")
    auto_class: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    hint = "Pass a complete run."
    published = load_model(auto_class, str(folder), "language model", hint, with_values=True, dtype=torch.float32)
    names, trained = _as_trained(copy.deepcopy(published), folder / ADAPTER_FOLDER)
    if not names:
        return Finding("pass", f"{folder} is the model that was trained: no layers share merged adapters")
    difference = (_log_probs(published.eval()) - _log_probs(trained.eval())).abs().max()
    measured = (
        f"{folder} is not the model that was trained: the adapters of {', '.join(names)} were merged into weights that "
        f"other layers share, which changes log-probabilities by up to {float(difference):.2g} nats"
    )
    advice = f"use the initial model with {folder / ADAPTER_FOLDER} (peft), or train again; then export or push again"
    return Finding("fail" if difference > 1e-3 else "pass", measured, advice)


def _as_trained(model: PreTrainedModel, adapter: Path) -> tuple[list[str], PreTrainedModel]:
    """The model in which each layer has its own adapters, and the names of layers with adapters in shared weights.

    Adapters that were merged into weights of several layers are taken back.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    sharing: dict[int, list[Any]] = defaultdict(list)
    for module in model.modules():
        if isinstance(weight := getattr(module, "weight", None), Tensor):
            sharing[id(weight)].append(module)
    shared = [layers for layers in sharing.values() if len(layers) > 1]
    merged = [layers[0].weight.clone() for layers in shared]  # peft's file may have the initial weights, too
    peft_model = PeftModel.from_pretrained(model, str(adapter))
    names: list[str] = []
    changes: dict[nn.Module, Tensor] = {}
    adapted: dict[str, Any] = {name: each for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    for name, layer in adapted.items():
        if any(layer.get_base_layer() in layers for layers in shared):
            names.append(name)
            changes[layer.get_base_layer()] = layer.get_delta_weight("default")
    for layers, weight in zip(shared, merged, strict=True):
        initial = weight - sum(changes.get(layer, 0.0) for layer in layers)
        for layer in layers:
            layer.weight = nn.Parameter(initial + changes.get(layer, 0.0), requires_grad=False)
    return names, peft_model.unload()


def _log_probs(model: PreTrainedModel) -> Tensor:
    """Log-probabilities of all tokens after each token of random texts. Shape (texts, tokens, V)."""
    shape, generator = (_N_TEXTS, _N_TOKENS), torch.Generator().manual_seed(0)
    ids = torch.randint(embedding_rows(model), shape, generator=generator)
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    logits: Tensor = model(**inputs).logits
    return logits.float().log_softmax(dim=-1)
