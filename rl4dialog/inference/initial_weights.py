"""The weights with which a run began, for partners that speak with them."""

from __future__ import annotations

from rl4dialog.core.errors import ModelError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.saved_mask import first_model
from rl4dialog.policies.weight_copies import WeightCopy
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.training.building.language_model import build_language_model


def begin_conversations(conversing: Conversing | PartnerService, loaded: LoadedPolicy) -> None:
    """Prepare the partner of a trained policy's conversations, given them or the partner itself."""
    if not conversing.needs_initial_weights:
        conversing.begin_run(loaded.policy)
        return
    config, run = loaded.config, loaded.run
    first = build_language_model(config, loaded.texts) if run is None else first_model(config, run)
    if first is None:
        raise ModelError(
            "the partner self_play is the model with which the run began, and this is not available: restore "
            "alg.policy.args.model_name and the data of the warm start, or set train_evaluation.partner"
        )
    model = loaded.policy.language_model
    own = dict(first.to(loaded.policy.device).named_parameters())  # type: ignore[arg-type]
    conversing.begin_run(loaded.policy, WeightCopy(model.named_parameters(), own))
