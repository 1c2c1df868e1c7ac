"""rl4dialog: online and offline reinforcement learning for dialogue language models, built on stable-baselines3.

Importing this package imports no torch; what is named here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "rl4dialog.catalog": (
        *("AlgorithmRegistry", "CallbackRegistry", "DataPoolRegistry", "EnvRegistry", "MetricRegistry"),
        *("NlgRegistry", "NluRegistry", "OfflineAlgorithmRegistry", "PartnerRegistry", "PolicyRegistry"),
        *("InfoFnRegistry", "PostProcessorRegistry", "RewardFunctionRegistry", "TaskRegistry", "TrackerRegistry"),
        *("TurnAlgorithmRegistry", "TurnPolicyRegistry", "TurnRewardRegistry", "TurnWarmStartRegistry"),
    ),
    "rl4dialog.core.protocols": (
        *("BaseMetric", "BatchedConversationReward", "BatchedRewardFunction", "ConversationReward", "DialogueMetric"),
        *("Partner", "RewardFunction", "SentenceRewardFunction"),
    ),
    "rl4dialog.core.types": ("Dialogue", "PartnerReply", "Sample", "Turn"),
    "rl4dialog.data.pool": ("TextGenPool",),
    "rl4dialog.inference.loading": ("load_policy",),
    "rl4dialog.inference.turn_level_agent": ("load_agent",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rl4dialog' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
