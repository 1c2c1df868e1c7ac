"""OpenRL's NLPReward."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.intent_accuracy import BUILTIN_CLASSIFIER
from rl4dialog.rewards.intent_accuracy import IntentAccuracyReward


class NlpReward(IntentAccuracyReward):
    """Half for the right dialogue act, plus half of METEOR (OpenRL's NLPReward, without its KL penalty).

    The KL penalty is configured in ``alg.kl_div``: OpenRL's is ``{coeff: 0.2, target_kl: 0.05}``, with the same
    controller.

    Args:
        intent_model: Folder or hub id of a classifier; by default the built-in one.
        ref_model: Accepted for OpenRL's configs, without effect: the reference is the initial policy.
        classifier: Predicts dialogue acts; passed by the toolkit for the built-in classifier.
        synonyms: Whether METEOR uses WordNet.
    """

    def __init__(
        self,
        intent_model: str = BUILTIN_CLASSIFIER,
        ref_model: str | None = None,
        classifier: Any = None,
        synonyms: bool = True,
    ) -> None:
        del ref_model
        super().__init__(
            intent_coeff=0.5, auto_coeff=0.5, classifier=classifier, model_name=intent_model, synonyms=synonyms
        )
