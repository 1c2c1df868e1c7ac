"""Registries of every id that YAML can name.

Where each one lives is in ``catalog.yaml``, or in the feature that brings it, imported on first use.
"""

from __future__ import annotations

from rl4dialog.core.features import all_ids
from rl4dialog.core.registry import Registry

_IDS = all_ids()

DataPoolRegistry = Registry(
    "datapool", _IDS["datapool"], constructor="prepare", provided=("split", "render_chat", "world", "build_pool")
)

RewardFunctionRegistry = Registry(
    "reward function",
    _IDS["reward function"],
    provided=("tokenizer", "classifier", "personas", "build_part", "async_calls", "pays_now"),
    listed="rewards",
)

PartnerRegistry = Registry(
    "partner",
    _IDS["partner"],
    provided=("tokenizer", "max_prompt_length", "max_length", "world", "own_side", "is_frozen", "run_seed"),
)

MetricRegistry = Registry(
    "metric", _IDS["metric"], provided=("tokenizer", "classifier", "personas", "build_part", "async_calls")
)

PostProcessorRegistry = Registry("post-processor", _IDS["post-processor"])

PolicyRegistry = Registry(
    "policy",
    _IDS["policy"],
    provided=(
        *("observation_space", "action_space", "lr_schedule", "model", "end_of_turn", "precision", "lora"),
        "max_reply_length",
    ),
    listed="policies",
)

AlgorithmRegistry = Registry(
    "algorithm",
    _IDS["algorithm"],
    adapter=_IDS["adapter"]["algorithm"],
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "kl_controller", "collector", "normalize_rewards"),
        *("supervised_loss", "rollout_buffer_class", "rollout_buffer_kwargs", "sharded", "_init_setup_model"),
    ),
)

AdvantageRegistry = Registry(
    "advantage estimator",
    _IDS["advantage estimator"],
    provided=("gamma", "gae_lambda", "turn_gamma", "turn_gae_lambda", "value_gae_lambda"),
)

OfflineAlgorithmRegistry = Registry(
    "offline algorithm",
    _IDS["offline algorithm"],
    provided=("policy", "env", "log", "policy_kwargs", "seed", "stats_window_size", "verbose"),
)

CallbackRegistry = Registry(
    "callback", _IDS["callback"], provided=("evaluations", "save_model", "run_folder", "build_callback")
)

InfoFnRegistry = Registry("info function", _IDS["info function"], provided=("record",))

EnvRegistry = Registry(
    "environment",
    _IDS["environment"],
    provided=(
        *("goal_split", "keeps_transcripts", "task", "task_args", "turn_reward", "nlu", "nlg", "tracker"),
        *("samples", "reward_parts", "vocab_size", "partner", "outside_partner", "frame", "shares_dialogues"),
        *("end_of_turn", "speaker", "estimator", "outcomes", "n_envs", "is_numbered", "best_order"),
    ),
)

TaskRegistry = Registry("task", _IDS["task"], needs_all=True)

NluRegistry = Registry("nlu", _IDS["nlu"], provided=("world",))
NlgRegistry = Registry("nlg", _IDS["nlg"], provided=("world",))
TrackerRegistry = Registry("tracker", {}, provided=("world",))

SpeakerRegistry = Registry("speaker", _IDS["speaker"], provided=("max_prompt_length", "max_length"))

EstimatorRegistry = Registry("estimator", _IDS["estimator"], provided=("personas",))

WordlePlayerRegistry = Registry("Wordle player", _IDS["Wordle player"], provided=("game",))

TurnAlgorithmRegistry = Registry(
    "turn-level algorithm",
    _IDS["turn-level algorithm"],
    adapter=_IDS["adapter"].get("turn-level algorithm"),
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "tensorboard_log", "replay_buffer_class", "replay_buffer_kwargs"),
        *("rollout_buffer_class", "rollout_buffer_kwargs", "_init_setup_model"),
    ),
)

TurnPolicyRegistry = Registry(
    "turn-level policy", _IDS["turn-level policy"], provided=("observation_space",), listed="turn-level-policies"
)

TurnRewardRegistry = Registry("turn-level reward", _IDS["turn-level reward"])

TurnWarmStartRegistry = Registry("turn-level warm start", _IDS["turn-level warm start"])
