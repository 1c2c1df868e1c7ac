"""Restores the mask of an NLPO policy.

``model/`` contains only the trained model. The mask policy is a copy of it after some iteration: the last one, that of
a checkpoint, or none, which is the initial model of the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

from rl4dialog.catalog import PolicyRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.saving import MASK_FILE, load_state_beside
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.results import is_complete, read_result
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.policy import inference_arguments
from rl4dialog.training.building.texts import build_texts

_logger = logging.getLogger(__name__)


def masked_policy(
    around: Callable[[PreTrainedModel], LMActorCriticPolicy],
    model: PreTrainedModel,
    config: TextConfig,
    run: Path | None,
    checkpoint: Path | None,
) -> LMActorCriticPolicy:
    """Build a maskable policy with the mask of its run; if it is not available, with the model's own, and a warning.

    Args:
        around: Builds the policy from the model used as its mask and its reference.
        model: The trained model.
        config: Config of the run.
        run: The run folder, if there is one.
        checkpoint: The model's checkpoint, if it is from one.
    """
    masks_by_reference, every = _mask_settings(config)
    folder = checkpoint
    if folder is None and run is not None and is_complete(run):
        n_iterations = int(read_result(run)["iterations"])
        updated = 0 if masks_by_reference else n_iterations - n_iterations % every
        if updated == n_iterations:
            return around(model)
        folder = _checkpoint_between(run, updated, n_iterations)
        if updated == 0 and folder is None:
            masks_by_reference = True  # the mask policy was never updated, so it is still the reference
    if masks_by_reference and run is not None:
        first = first_model(config, run)
        if first is not None:
            policy = around(first)
            policy.language_model.load_state_dict(model.state_dict())
            return policy
    elif folder is not None:
        policy = around(model)
        load_state_beside(policy, folder, MASK_FILE)
        return policy
    _logger.warning(
        "the mask of the training of %s is not available (set train_evaluation.save_every to keep it): replies are "
        "masked by the model's own probabilities",
        run or "the model",
    )
    return around(model)


def _mask_settings(config: TextConfig) -> tuple[bool, int]:
    """Whether the reference is the mask, and otherwise every how many iterations the mask policy is updated."""
    args = {**PolicyRegistry.defaults(config.policy_id), **inference_arguments(config)}
    return str(args["mask_type"]).startswith("reference"), int(args["target_update_iterations"])


def _checkpoint_between(run: Path, first: int, last: int) -> Path | None:
    """A checkpoint of an iteration from ``first`` to ``last``, between which the mask policy does not change."""
    for folder in sorted((run / CHECKPOINTS_FOLDER).glob("iteration_*"), reverse=True):
        number = re.fullmatch(r"iteration_(\d+)", folder.name)
        if number and first <= int(number.group(1)) <= last and (folder / MASK_FILE).is_file():
            return folder
    return None


def first_model(config: TextConfig, run: Path) -> PreTrainedModel | None:
    """The initial language model of a run; ``None`` if it is no longer available."""
    try:
        model = build_language_model(config, build_texts(config))
    except RL4DialogError as error:
        _logger.warning("the initial model of the run is not available: %s", error)
        return None
    recorded = read_provenance(run).get("model_hash")
    return model if recorded in (None, weights_hash(model)) else None
