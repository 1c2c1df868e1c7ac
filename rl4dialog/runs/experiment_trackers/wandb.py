"""Weights & Biases. Without an API key, its offline mode writes into the run folder."""

from __future__ import annotations

import logging
import netrc
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.runs.experiment_trackers.tracker import ExperimentTracker, RunDescription, redact, table

_logger = logging.getLogger(__name__)
_URL = "https://api.wandb.ai"


class WandbTracker(ExperimentTracker):
    """A run on Weights & Biases; offline if it cannot be reached.

    Args:
        about: The run.
    """

    def __init__(self, about: RunDescription) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run = self._start(about)
        self.run_id = str(self._run.id)
        # Values that a resumed run sends again get the same step.
        for names, step in (("*", "iteration"), ("val/*", "epoch"), ("test/*", "epoch")):
            self._run.define_metric(names, step_metric=step)

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self._run.log({counter: step, **values})

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        columns, rows = table(predictions)
        self._run.log({f"{split}_predictions": self._wandb.Table(columns=columns, data=rows), "epoch": epoch})

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        self._run.summary.update(dict(values))

    def log_report(self, file: Path) -> None:
        artifact = self._wandb.Artifact(f"report-{self.run_id}", type="report")
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))

    def _start(self, about: RunDescription) -> Any:
        mode = None
        if not os.environ.get("WANDB_MODE") and not _has_key():
            mode = "offline"
            _logger.info(
                "no wandb API key: wandb runs offline in %s; upload later with: wandb sync", about.root / "wandb"
            )
        # Without an online attempt there is nothing to fall back from.
        is_offline = mode == "offline" or os.environ.get("WANDB_MODE") == "offline"
        if not is_offline:
            try:
                return self._init(about, None)
            except Exception as error:  # wandb raises many exception types
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                _logger.warning("cannot start wandb (online): %s; it runs offline", redact(reason))
                mode = "offline"
        return self._init(about, mode)

    def _init(self, about: RunDescription, mode: str | None) -> Any:
        return self._wandb.init(
            project=about.project,
            name=about.name,
            entity=about.entity,
            dir=str(about.root),
            config=dict(about.config),
            id=about.run_id,
            resume=None if about.run_id is None else "allow",
            mode=mode,
            settings=self._wandb.Settings(silent=True, console="off", init_timeout=30),
        )


def _has_key() -> bool:
    """Whether wandb can log in without a prompt: by environment, or by the netrc file written by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or _URL).netloc
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(str(Path(path).expanduser())).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
