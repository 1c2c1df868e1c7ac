"""Every id that YAML can name, and where it lives. Nothing here is imported before it is used."""

from __future__ import annotations

from rl4dialog.core.registry import Registry

DataPoolRegistry = Registry(
    "datapool",
    {
        "daily_dialog": "rl4dialog.data.daily_dialog:DailyDialog",
        "dummy_pool": "rl4dialog.data.dummy_pool:DummyPool",
        "persona_chat": "rl4dialog.data.persona_chat:PersonaChat",
        "random_numbers": "rl4dialog.data.random_numbers:RandomNumbers",
        "small_talk": "rl4dialog.data.small_talk:SmallTalk",
    },
    constructor="prepare",
    provided=("split", "render_chat"),
)

RewardFunctionRegistry = Registry(
    "reward function",
    {
        "bleu": "rl4dialog.rewards.lexical:BleuReward",
        "composite": "rl4dialog.rewards.composite:CompositeReward",
        "increasing_numbers": "rl4dialog.rewards.increasing_numbers:IncreasingNumbersReward",
        "intent_accuracy": "rl4dialog.rewards.intent_accuracy:IntentAccuracyReward",
        "meteor": "rl4dialog.rewards.lexical:MeteorReward",
        "rouge": "rl4dialog.rewards.lexical:RougeReward",
        "sacre_bleu": "rl4dialog.rewards.lexical:SacreBleuReward",
    },
    provided=("tokenizer", "classifier", "accelerator", "build_part"),
)

MetricRegistry = Registry(
    "metric",
    {
        "bert_score": "rl4dialog.metrics.bert_score:BertScoreMetric",
        "bleu": "rl4dialog.metrics.bleu:BleuMetric",
        "causal_perplexity": "rl4dialog.metrics.causal_perplexity:CausalPerplexityMetric",
        "diversity": "rl4dialog.metrics.diversity:DiversityMetric",
        "increasing_numbers": "rl4dialog.metrics.increasing_numbers:IncreasingNumbersMetric",
        "intent_accuracy": "rl4dialog.metrics.intent_accuracy:IntentAccuracyMetric",
        "length": "rl4dialog.metrics.length:LengthMetric",
        "meteor": "rl4dialog.metrics.meteor:MeteorMetric",
        "rouge": "rl4dialog.metrics.rouge:RougeMetric",
        "sacre_bleu": "rl4dialog.metrics.sacre_bleu:SacreBleuMetric",
    },
    provided=("tokenizer", "classifier", "accelerator"),
)

PolicyRegistry = Registry(
    "policy",
    {
        "causal_lm_actor_critic_policy": "rl4dialog.policies.causal:CausalLMActorCriticPolicy",
        "maskable_causal_lm_actor_critic_policy": "rl4dialog.policies.maskable:MaskableCausalLMActorCriticPolicy",
        "maskable_seq2seq_lm_actor_critic_policy": "rl4dialog.policies.maskable:MaskableSeq2SeqLMActorCriticPolicy",
        "seq2seq_lm_actor_critic_policy": "rl4dialog.policies.seq2seq:Seq2SeqLMActorCriticPolicy",
    },
    provided=("observation_space", "action_space", "lr_schedule", "model", "end_of_turn"),
)

AlgorithmRegistry = Registry(
    "algorithm",
    {
        "a2c": "rl4dialog.algorithms.on_policy.a2c:A2C",
        "grpo": "rl4dialog.algorithms.on_policy.grpo:GRPO",
        "nlpo": "rl4dialog.algorithms.on_policy.nlpo:NLPO",
        "ppo": "rl4dialog.algorithms.on_policy.ppo:PPO",
        "rloo": "rl4dialog.algorithms.on_policy.rloo:RLOO",
        "trpo": "rl4dialog.algorithms.on_policy.trpo:TRPO",
    },
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "kl_controller", "collector", "normalize_rewards"),
        *("rollout_buffer_class", "rollout_buffer_kwargs", "_init_setup_model"),
    ),
)
