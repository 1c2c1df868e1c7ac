"""Publishes a run's model with a model card on the Hugging Face Hub."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id
from rich.console import Console
from rich.text import Text

from rl4dialog.core.errors import HubError, RunFolderError
from rl4dialog.inference.model_card import model_card
from rl4dialog.inference.saved_run import read_text_config
from rl4dialog.inference.saved_values import check_without_values
from rl4dialog.policies.value_guidance import GUIDANCE_FILES
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.results import read_result
from rl4dialog.runs.run_folder import MODEL_FOLDER, write_text

CARD_FILE = "README.md"


def push_to_hub(
    run: Path,
    repo_id: str,
    private: bool = False,
    dry_run: bool = False,
    console: Console | None = None,
    prior_only: bool = False,
    trust: bool = False,
) -> None:
    """Write a model card into a run's ``model/``, and upload the folder.

    Args:
        run: A complete run.
        repo_id: ``user/name``; the repository is created if it does not exist.
        private: Whether a new repository is private.
        dry_run: Only write the card and list the files.
        console: Console to print to.
        prior_only: Publish the language model of a guided policy without its values, which transformers cannot use.
        trust: Whether to run the code of a custom policy's class.

    Raises:
        RunFolderError: If the run is not complete.
        ConfigError: If values guide its policy, and ``prior_only`` is not set; if it is set without such values; or if
            the policy's class is custom code without ``trust``.
        HubError: If the name is invalid, no user is logged in, or the hub refuses the request or cannot be reached.
    """
    run, console = run.expanduser(), console or Console()
    result = read_result(run)
    config = read_text_config(run, trust)
    folder = run / MODEL_FOLDER
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is missing; there is no model to publish")
    _check_repo_id(repo_id)
    check_without_values(config, run, prior_only, "which transformers does not load", "publish")
    card = model_card(repo_id, config, result, read_provenance(run))
    write_text(folder / CARD_FILE, card)
    _print_files(folder, console)
    if dry_run:
        console.print(Text(f"Dry run: nothing was uploaded. Model card: {folder / CARD_FILE}"), soft_wrap=True)
        return
    url = _upload(folder, repo_id, private)
    console.print(Text(f"Published: {url}"), soft_wrap=True)


def _check_repo_id(repo_id: str) -> None:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise HubError(f"--repo_id {repo_id!r} is not a valid repository name: {error}") from error
    if repo_id.count("/") != 1:
        raise HubError(f"--repo_id must be user/name, not {repo_id!r}")


def _print_files(folder: Path, console: Console) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in GUIDANCE_FILES):
        name = path.relative_to(folder).as_posix()
        console.print(Text(f"{math.ceil(path.stat().st_size / 1024):10,} KiB  {name}"), soft_wrap=True)


def _upload(folder: Path, repo_id: str, private: bool) -> Any:
    if get_token() is None:
        raise HubError("not logged in to the Hugging Face Hub; log in with: hf auth login (or set HF_TOKEN)")
    api = HfApi()
    try:
        # `None` keeps the visibility of an existing repository, and uses the account's default for a new one.
        url = api.create_repo(repo_id, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message="Model and model card by rl4dialog",
            ignore_patterns=list(GUIDANCE_FILES),
        )
    except HfHubHTTPError as error:
        raise HubError(f"the hub refused {repo_id!r}: {_one_line(error)}") from error
    except Exception as error:  # connection errors of httpx, of requests, and of the hub's offline mode
        raise HubError(f"the hub cannot be reached, so {repo_id!r} was not published: {_one_line(error)}") from error
    return url


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
