"""Publishes a run's model on the Hugging Face Hub, with a card: description, effect of training, and how to load it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id
from rich.text import Text

from rl4dialog.core.config import OnPolicyConfig, PolicyRunConfig, TextConfig, text_config
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, HubError, RunFolderError
from rl4dialog.core.files import check_contained, write_text
from rl4dialog.core.plugins import load_entry_points
from rl4dialog.core.pretrained import GUIDANCE_FILES, PRETRAINED
from rl4dialog.core.untrusted import redacted
from rl4dialog.inference.loading import read_run_config, stored_config
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.run_folder import MODEL_FOLDER, check_is_run, read_result
from rl4dialog.runs.summary import format_number, is_headline
from rl4dialog.training.building.policy import algorithm_class, is_guided, policy_class

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
        kind="offline" if config.log else "rl" if isinstance(config, OnPolicyConfig) else "",
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
    if config.log and isinstance(config, PolicyRunConfig) and algorithm_class(config).needs_rewards:
        kind = "offline-reinforcement-learning"
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
    """Shorten a local path to its last part, which is all that others can use, and hide credentials of an address."""
    is_path = os.path.isabs(text) or text.startswith(("~", "./", "../"))
    return f".../{Path(text).name}" if is_path else redacted(text)


def _without_local_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_local_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_local_paths(inner) for inner in value]
    return _shortened(value) if isinstance(value, str) else value


def read_text_config(run: Path, trust: bool = False) -> TextConfig:
    """Read the resolved config of a run on text whose model is used without its other components.

    Its imports are loaded only with ``trust``.
    """
    if trust:
        return text_config(read_run_config(run, trust=True))
    check_is_run(run)
    config = text_config(stored_config(run))
    load_entry_points()
    return config


def check_without_values(config: TextConfig, run: Path, prior_only: bool, why_lost: str, verb: str) -> None:
    """Check that a run's policy stays the same without values, or that its language model alone is wanted."""
    try:
        guided = is_guided(config)
    except ConfigError as error:
        if not config.imports:
            raise
        raise ConfigError(
            f"the policy {config.policy_id!r} of {run}, or its algorithm, is custom code (imports: "
            f"{', '.join(config.imports)}). Review it, and pass --trust (trust=True in Python) if you trust it"
        ) from error
    if guided and not prior_only:
        raise ConfigError(
            f"the policy of {run} is guided by values, {why_lost}, so without them it would be another policy; pass "
            f"--prior_only to {verb} its language model alone"
        )
    if prior_only and not guided:
        raise ConfigError(f"--prior_only has no meaning for {run}, whose policy is its language model; remove it")


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
    check_contained(folder, but="")  # other files of the run are not uploaded, either
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
