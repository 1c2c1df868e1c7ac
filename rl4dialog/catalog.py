"""Registries of every id that YAML can name.

Where each one lives is in ``catalog.yaml``, or in the feature that brings it, imported on first use.
"""

from __future__ import annotations

from typing import Any

from rl4dialog.core.features import all_ids
from rl4dialog.core.registry import Registry

_IDS = all_ids()


def _registry(kind: str, **settings: Any) -> Registry:
    """The ids of one kind, of which the core may have none."""
    return Registry(kind, _IDS.get(kind, {}), adapter=_IDS["adapter"].get(kind), **settings)


DataPoolRegistry = _registry(
    "datapool", constructor="prepare", provided=("split", "render_chat", "world", "build_pool")
)

RewardFunctionRegistry = _registry(
    "reward function",
    provided=("tokenizer", "classifier", "personas", "build_part", "async_calls", "pays_now"),
    listed="rewards",
)

PartnerRegistry = _registry(
    "partner",
    provided=("tokenizer", "max_prompt_length", "max_length", "world", "own_side", "is_frozen", "run_seed", "built"),
)

ToolboxRegistry = _registry("toolbox", provided=("pool_args",), listed="toolboxes")
ToolRegistry = _registry("tool", provided=("pool_args",))

MetricRegistry = _registry("metric", provided=("tokenizer", "classifier", "personas", "build_part", "async_calls"))

PostProcessorRegistry = _registry("post-processor")

PolicyRegistry = _registry(
    "policy",
    provided=(
        *("observation_space", "action_space", "lr_schedule", "model", "end_of_turn", "precision", "lora"),
        "max_reply_length",
    ),
    listed="policies",
)

AlgorithmRegistry = _registry(
    "algorithm",
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "kl_controller", "collector", "normalize_rewards"),
        *("supervised_loss", "rollout_buffer_class", "rollout_buffer_kwargs", "sharded", "_init_setup_model"),
    ),
)

AdvantageRegistry = _registry(
    "advantage estimator",
    provided=("gamma", "gae_lambda", "turn_gamma", "turn_gae_lambda"),
)

OfflineAlgorithmRegistry = _registry(
    "offline algorithm",
    provided=("policy", "env", "log", "policy_kwargs", "seed", "stats_window_size", "verbose"),
)

CallbackRegistry = _registry("callback", provided=("evaluations", "save_model", "run_folder", "build_callback"))

InfoFnRegistry = _registry("info function", provided=("record",))

EnvRegistry = _registry(
    "environment",
    provided=(
        *("goal_split", "keeps_transcripts", "task", "task_args", "turn_reward", "nlu", "nlg", "tracker"),
        *("samples", "reward_parts", "vocab_size", "partner", "outside_partner", "frame", "shares_dialogues"),
        "toolbox",
        *("end_of_turn", "speaker", "estimator", "outcomes", "n_envs", "is_numbered", "best_order"),
    ),
)

TaskRegistry = _registry("task", needs_all=True)

NluRegistry = _registry("nlu", provided=("world",))
NlgRegistry = _registry("nlg", provided=("world",))
TrackerRegistry = _registry("tracker", provided=("world",))

SpeakerRegistry = _registry("speaker", provided=("max_prompt_length", "max_length"))

EstimatorRegistry = _registry("estimator", provided=("personas",))

WordlePlayerRegistry = _registry("Wordle player", provided=("game",))

TurnAlgorithmRegistry = _registry(
    "turn-level algorithm",
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "tensorboard_log", "replay_buffer_class", "replay_buffer_kwargs"),
        *("rollout_buffer_class", "rollout_buffer_kwargs", "_init_setup_model"),
    ),
)

TurnPolicyRegistry = _registry("turn-level policy", provided=("observation_space",), listed="turn-level-policies")

TurnRewardRegistry = _registry("turn-level reward")

TurnWarmStartRegistry = _registry("turn-level warm start")
