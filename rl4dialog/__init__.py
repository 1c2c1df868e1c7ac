"""rl4dialog: online and offline reinforcement learning for dialogue language models, built on stable-baselines3.

Importing this package imports no torch; what is named here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "AlgorithmRegistry": "rl4dialog.catalog",
    "CallbackRegistry": "rl4dialog.catalog",
    "DataPoolRegistry": "rl4dialog.catalog",
    "EnvRegistry": "rl4dialog.catalog",
    "MetricRegistry": "rl4dialog.catalog",
    "PartnerRegistry": "rl4dialog.catalog",
    "PolicyRegistry": "rl4dialog.catalog",
    "PostProcessorRegistry": "rl4dialog.catalog",
    "RewardFunctionRegistry": "rl4dialog.catalog",
    "NlgRegistry": "rl4dialog.catalog",
    "NluRegistry": "rl4dialog.catalog",
    "OfflineAlgorithmRegistry": "rl4dialog.catalog",
    "TaskRegistry": "rl4dialog.catalog",
    "TrackerRegistry": "rl4dialog.catalog",
    "TurnAlgorithmRegistry": "rl4dialog.catalog",
    "TurnPolicyRegistry": "rl4dialog.catalog",
    "TurnRewardRegistry": "rl4dialog.catalog",
    "TurnWarmStartRegistry": "rl4dialog.catalog",
    "BaseMetric": "rl4dialog.core.protocols",
    "BatchedConversationReward": "rl4dialog.core.protocols",
    "BatchedRewardFunction": "rl4dialog.core.protocols",
    "ConversationReward": "rl4dialog.core.protocols",
    "DialogueMetric": "rl4dialog.core.protocols",
    "Partner": "rl4dialog.core.protocols",
    "RewardFunction": "rl4dialog.core.protocols",
    "SentenceRewardFunction": "rl4dialog.core.protocols",
    "Dialogue": "rl4dialog.core.types",
    "PartnerReply": "rl4dialog.core.types",
    "Sample": "rl4dialog.core.types",
    "Turn": "rl4dialog.core.types",
    "load_agent": "rl4dialog.inference.turn_level_agent",
    "load_policy": "rl4dialog.inference.loading",
    "TextGenPool": "rl4dialog.data.pool",
}
__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'rl4dialog' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
