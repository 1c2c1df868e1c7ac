"""rl4dialog: online and offline reinforcement learning for dialogue language models, built on stable-baselines3.

Importing this package imports no torch; what is named here is loaded when it is first used.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.features import find_moved

__version__ = "0.1.0"

_NAMES = {
    "rl4dialog.catalog": (
        *("AdvantageRegistry", "AlgorithmRegistry", "CallbackRegistry", "DataPoolRegistry", "EnvRegistry"),
        "MetricRegistry",
        *("NlgRegistry", "NluRegistry", "OfflineAlgorithmRegistry", "PartnerRegistry", "PolicyRegistry"),
        *("InfoFnRegistry", "PostProcessorRegistry", "RewardFunctionRegistry", "TaskRegistry", "TrackerRegistry"),
        *("ToolRegistry", "ToolboxRegistry"),
        *("TurnAlgorithmRegistry", "TurnPolicyRegistry", "TurnRewardRegistry", "TurnWarmStartRegistry"),
        "WordlePlayerRegistry",
    ),
    "rl4dialog.core.protocols": (
        *("BaseMetric", "BatchedConversationReward", "BatchedRewardFunction", "ConversationReward", "DialogueMetric"),
        *("Partner", "RewardFunction", "SentenceRewardFunction"),
    ),
    "rl4dialog.core.types": ("Dialogue", "PartnerReply", "Sample", "Turn"),
    "rl4dialog.data.pool": ("TextGenPool",),
    "rl4dialog.envs.conversation": ("Observation",),
    "rl4dialog.inference.loading": ("load_agent", "load_policy"),
    "rl4dialog.runs.report.notebook": ("show_conversations", "show_curves"),
    "rl4dialog.training.building.single_env": ("make_env",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__", "train", *_MODULES]
find_moved()


def train(
    config_path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    run: str | Path = "rl4dialog_exps/rl4dialog_experiment",
    overwrite: bool = False,
) -> Any:
    """Train as ``rl4dialog train`` does, and load the trained policy; a run that is complete is only loaded.

    Args:
        config_path: A YAML file; ``task_configs/...`` is a shipped one.
        overrides: Values by config key, such as ``{"alg.args.n_epochs": 3}``.
        run: The run folder.
        overwrite: Whether to replace an existing run.

    Returns:
        For a language model, a :class:`~rl4dialog.inference.loading.TrainedRun`; for another environment, its policy.
    """
    from rl4dialog.commands.parser import COMMANDS, make_parser
    from rl4dialog.core.config import load_config, text_config
    from rl4dialog.inference.loading import TrainedRun, load_agent
    from rl4dialog.training.own_process import train_arguments

    folder = Path(run).expanduser().absolute()
    settings = [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    if not (config := load_config(config_path, settings)).agent:
        text_config(config)
    argv = train_arguments(config_path, folder, *["--overwrite"] * overwrite, overrides=settings)
    args = make_parser().parse_args(argv)
    args.argv = argv
    COMMANDS["train"].run(args)
    return load_agent(folder, trust=True) if config.agent else TrainedRun(folder)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rl4dialog' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
