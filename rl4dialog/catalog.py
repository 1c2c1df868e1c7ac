"""Every id that YAML can name, and where it lives. Nothing here is imported before it is used."""

from __future__ import annotations

from rl4dialog.core.registry import Registry

DataPoolRegistry = Registry(
    "datapool",
    {
        "cnn_daily_mail": "rl4dialog.data.documents:CNNDailyMail",
        "comment_reply": "rl4dialog.tasks.comment_reply:CommentReplies",
        "commongen": "rl4dialog.data.data_to_text:CommonGen",
        "conversational": "rl4dialog.data.conversational:Conversational",
        "conversations": "rl4dialog.data.conversations.pool:LoggedConversations",
        "crd3": "rl4dialog.data.dialogue_corpora:CRD3",
        "csv": "rl4dialog.data.tables:Csv",
        "daily_dialog": "rl4dialog.data.dialogue_corpora:DailyDialog",
        "dummy_pool": "rl4dialog.data.toy_pools:DummyPool",
        "feedback": "rl4dialog.data.judged_texts:FeedbackPool",
        "get_acquainted": "rl4dialog.tasks.get_acquainted:GetAcquainted",
        "guess_the_picture": "rl4dialog.tasks.guess_the_picture:GuessThePicture",
        "guess_what": "rl4dialog.tasks.guess_what:GuessWhat",
        "hf_dataset": "rl4dialog.data.tables:HFDataset",
        "imdb": "rl4dialog.data.documents:IMDB",
        "imdb_seq2seq": "rl4dialog.data.documents:IMDBForSeq2Seq",
        "iwslt2017en_de": "rl4dialog.data.translation:IWSLT2017EnDe",
        "jsonl": "rl4dialog.data.tables:Jsonl",
        "mixture": "rl4dialog.data.mixture:Mixture",
        "narrative_qa": "rl4dialog.data.documents:NarrativeQA",
        "openers": "rl4dialog.data.openers:Openers",
        "persona_chat": "rl4dialog.data.persona_chat:PersonaChat",
        "persona_pairs": "rl4dialog.data.persona_chat:PersonaPairs",
        "random_numbers": "rl4dialog.data.toy_pools:RandomNumbers",
        "random_walks": "rl4dialog.tasks.random_walks:RandomWalks",
        "rated_dialogues": "rl4dialog.data.judged_texts:RatedDialogues",
        "small_talk": "rl4dialog.data.small_talk.pool:SmallTalk",
        "task_dialogues": "rl4dialog.tasks.dialogue_acts.text_task:TaskDialogues",
        "table_booking": "rl4dialog.tasks.table_booking:TableBooking",
        "text_arena": "rl4dialog.tasks.text_arena:TextArenaGames",
        "totto": "rl4dialog.data.data_to_text:ToTTo",
        "wmt14_processed_en_de": "rl4dialog.data.translation:WMT14ProcessedEnDe",
        "wmt16": "rl4dialog.data.translation:WMT16",
        "wmt16newsonly": "rl4dialog.data.translation:WMT16NewsOnly",
        "wordle": "rl4dialog.tasks.wordle.datapool:Wordle",
    },
    constructor="prepare",
    provided=("split", "render_chat", "world", "build_pool"),
)

RewardFunctionRegistry = Registry(
    "reward function",
    {
        "bert_score": "rl4dialog.scores.semantic:BertScoreReward",
        "bleu": "rl4dialog.scores.overlap:BleuReward",
        "bleurt": "rl4dialog.scores.semantic:BleurtReward",
        "chrf": "rl4dialog.scores.overlap:ChrfReward",
        "common_gen_preference_model": "rl4dialog.scores.common_gen:CommonGenPreferenceModel",
        "common_gen_repeat_penalty": "rl4dialog.scores.common_gen:CommonGenRepeatPenalty",
        "common_gen_repeat_penalty_batched": "rl4dialog.scores.common_gen:BatchedCommonGenRepeatPenalty",
        "composite": "rl4dialog.scores.composite:CompositeReward",
        "conversation_reward_model": "rl4dialog.scores.reward_models:ConversationRewardModel",
        "increasing_numbers": "rl4dialog.scores.rules:IncreasingNumbersReward",
        "intent_accuracy": "rl4dialog.scores.intent:IntentAccuracyReward",
        "judge": "rl4dialog.scores.judge:JudgeReward",
        "keyword": "rl4dialog.scores.rules:KeywordReward",
        "learned_batched_reward": "rl4dialog.scores.reward_models:LearnedReward",
        "learned_reward": "rl4dialog.scores.reward_models:LearnedReward",
        "length_penalty": "rl4dialog.scores.rules:LengthPenalty",
        "manual_rating": "rl4dialog.scores.manual:ManualRating",
        "meteor": "rl4dialog.scores.meteor:MeteorReward",
        "metric": "rl4dialog.scores.adapters:AnyMetricReward",
        "missing_eos_penalty": "rl4dialog.scores.rules:MissingEosPenalty",
        "nlp_reward": "rl4dialog.scores.intent:NlpReward",
        "outcome": "rl4dialog.scores.conversation:OutcomeReward",
        "parent": "rl4dialog.scores.tables:ParentReward",
        "partner": "rl4dialog.scores.conversation:PartnerReward",
        "persona_ranking": "rl4dialog.scores.persona_ranking:PersonaRankingReward",
        "regex": "rl4dialog.scores.rules:RegexReward",
        "repetition_penalty": "rl4dialog.scores.rules:RepetitionPenalty",
        "rouge": "rl4dialog.scores.overlap:RougeReward",
        "rouge_combined": "rl4dialog.scores.overlap:RougeCombinedReward",
        "rouge_l_max": "rl4dialog.scores.overlap:RougeLMaxReward",
        "rudeness": "rl4dialog.scores.tasks:RudenessReward",
        "sacre_bleu": "rl4dialog.scores.overlap:SacreBleuReward",
        "sentences_with_dates": "rl4dialog.scores.rules:SentencesWithDatesReward",
        "shortest_path": "rl4dialog.scores.tasks:ShortestPathReward",
        "spider": "rl4dialog.scores.captions:SpiderReward",
        "ter": "rl4dialog.scores.overlap:TerReward",
    },
    provided=("tokenizer", "classifier", "personas", "build_part", "async_calls", "pays_now"),
)

PartnerRegistry = Registry(
    "partner",
    {
        "agenda_user": "rl4dialog.tasks.dialogue_acts.text_task:AgendaUserPartner",
        "facts": "rl4dialog.partners.scripted:FactsPartner",
        "guess_the_picture": "rl4dialog.tasks.guess_the_picture:GuessThePicturePartner",
        "guess_what": "rl4dialog.tasks.guess_what:GuessWhatPartner",
        "http": "rl4dialog.partners.http:HttpPartner",
        "language_model": "rl4dialog.partners.language_model:LanguageModelPartner",
        "openai": "rl4dialog.partners.openai:OpenAIPartner",
        "replay": "rl4dialog.partners.scripted:ReplayPartner",
        "rules": "rl4dialog.partners.scripted:RulesPartner",
        "scripted": "rl4dialog.partners.scripted:ScriptedPartner",
        "self_play": "rl4dialog.partners.self_play:SelfPlayPartner",
        "table_booking": "rl4dialog.tasks.table_booking:BookingGuest",
        "text_arena": "rl4dialog.tasks.text_arena:TextArenaPartner",
        "wordle": "rl4dialog.tasks.wordle.players:WordlePartner",
    },
    provided=("tokenizer", "max_prompt_length", "max_length", "world", "own_side", "is_frozen", "run_seed"),
)

MetricRegistry = Registry(
    "metric",
    {
        "bert_score": "rl4dialog.scores.semantic:BertScoreMetric",
        "bleu": "rl4dialog.scores.overlap:BleuMetric",
        "bleu_totto": "rl4dialog.scores.tables:BleuTottoMetric",
        "bleurt": "rl4dialog.scores.semantic:BleurtMetric",
        "causal_perplexity": "rl4dialog.scores.perplexity:CausalPerplexityMetric",
        "chrf": "rl4dialog.scores.overlap:ChrfMetric",
        "cider": "rl4dialog.scores.captions:CiderMetric",
        "conversation": "rl4dialog.scores.conversation:ConversationMetric",
        "conversation_diversity": "rl4dialog.scores.diversity:ConversationDiversityMetric",
        "conversation_reward_model": "rl4dialog.scores.reward_models:ConversationRewardModelMetric",
        "dates": "rl4dialog.scores.rules:DatesMetric",
        "diversity": "rl4dialog.scores.diversity:DiversityMetric",
        "embedding_similarity": "rl4dialog.scores.semantic:EmbeddingSimilarityMetric",
        "goal_followed": "rl4dialog.scores.tasks:GoalFollowedMetric",
        "hf_evaluate": "rl4dialog.scores.hf_evaluate:HfEvaluateMetric",
        "increasing_numbers": "rl4dialog.scores.rules:IncreasingNumbersMetric",
        "intent_accuracy": "rl4dialog.scores.intent:IntentAccuracyMetric",
        "learned_reward": "rl4dialog.scores.reward_models:LearnedRewardMetric",
        "length": "rl4dialog.scores.rules:LengthMetric",
        "meteor": "rl4dialog.scores.meteor:MeteorMetric",
        "parent_totto": "rl4dialog.scores.tables:ParentTottoMetric",
        "persona_consistency": "rl4dialog.scores.consistency:PersonaConsistencyMetric",
        "persona_ranking": "rl4dialog.scores.persona_ranking:PersonaRankingMetric",
        "reply_perplexity": "rl4dialog.scores.perplexity:ReplyPerplexityMetric",
        "reward": "rl4dialog.scores.adapters:RewardMetric",
        "rouge": "rl4dialog.scores.overlap:RougeMetric",
        "rouge_l_max": "rl4dialog.scores.overlap:RougeLMaxMetric",
        "rudeness": "rl4dialog.scores.tasks:RudenessMetric",
        "sacre_bleu": "rl4dialog.scores.overlap:SacreBleuMetric",
        "self_bleu": "rl4dialog.scores.diversity:SelfBleuMetric",
        "shortest_path": "rl4dialog.scores.tasks:ShortestPathMetric",
        "spice": "rl4dialog.scores.captions:SpiceMetric",
        "spider": "rl4dialog.scores.captions:SpiderMetric",
        "summaCConv": "rl4dialog.scores.consistency:SummaCConvMetric",
        "summaCZS": "rl4dialog.scores.consistency:SummaCZSMetric",
        "ter": "rl4dialog.scores.overlap:TerMetric",
    },
    provided=("tokenizer", "classifier", "personas", "build_part", "async_calls"),
)

PostProcessorRegistry = Registry(
    "post-processor", {"three_sentence_summary": "rl4dialog.text.words:three_sentence_summary"}
)

PolicyRegistry = Registry(
    "policy",
    {
        "causal_lm_actor_critic_policy": "rl4dialog.policies.causal:CausalLMActorCriticPolicy",
        "maskable_causal_lm_actor_critic_policy": "rl4dialog.policies.maskable:MaskableCausalLMActorCriticPolicy",
        "maskable_seq2seq_lm_actor_critic_policy": "rl4dialog.policies.maskable:MaskableSeq2SeqLMActorCriticPolicy",
        "seq2seq_lm_actor_critic_policy": "rl4dialog.policies.seq2seq:Seq2SeqLMActorCriticPolicy",
        "value_guided_causal_lm_policy": "rl4dialog.policies.value_guided:ValueGuidedCausalLMPolicy",
        "value_guided_seq2seq_lm_policy": "rl4dialog.policies.value_guided:ValueGuidedSeq2SeqLMPolicy",
        "value_reranked_causal_lm_policy": "rl4dialog.policies.value_guided:ValueRerankedCausalLMPolicy",
    },
    provided=(
        *("observation_space", "action_space", "lr_schedule", "model", "end_of_turn", "precision", "lora"),
        "max_reply_length",
    ),
)

AlgorithmRegistry = Registry(
    "algorithm",
    {
        "a2c": "rl4dialog.algorithms.on_policy.ppo:A2C",
        "grpo": "rl4dialog.algorithms.on_policy.critic_free:GRPO",
        "nlpo": "rl4dialog.algorithms.on_policy.ppo:NLPO",
        "ppo": "rl4dialog.algorithms.on_policy.ppo:PPO",
        "reinforce": "rl4dialog.algorithms.on_policy.critic_free:Reinforce",
        "rloo": "rl4dialog.algorithms.on_policy.critic_free:RLOO",
        "trpo": "rl4dialog.algorithms.on_policy.trpo:TRPO",
    },
    adapter="rl4dialog.algorithms.on_policy.rollout_mixin:with_rollouts",
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "kl_controller", "collector", "normalize_rewards"),
        *("supervised_loss", "rollout_buffer_class", "rollout_buffer_kwargs", "sharding", "_init_setup_model"),
    ),
)

OfflineAlgorithmRegistry = Registry(
    "offline algorithm",
    {
        "awac": "rl4dialog.algorithms.offline.bc:AWAC",
        "bc": "rl4dialog.algorithms.offline.bc:BC",
        "chai": "rl4dialog.algorithms.offline.chai:CHAI",
        "cql": "rl4dialog.algorithms.offline.q_learning:CQL",
        "decision_transformer": "rl4dialog.algorithms.offline.bc:DecisionTransformer",
        "filtered_bc": "rl4dialog.algorithms.offline.bc:FilteredBC",
        "ilql": "rl4dialog.algorithms.offline.q_learning:ILQL",
        "mc_returns": "rl4dialog.algorithms.offline.bc:MCReturns",
        "psi_learning": "rl4dialog.algorithms.offline.bc:PsiLearning",
    },
    provided=("policy", "env", "log", "policy_kwargs", "seed", "stats_window_size", "verbose"),
)

TaskRegistry = Registry(
    "task",
    {
        "camrest": "rl4dialog.tasks.camrest:camrest",
        "multiwoz": "rl4dialog.tasks.multiwoz:multiwoz",
        "town_guide": "rl4dialog.tasks.town_guide:town_guide",
    },
    needs_all=True,
)

NluRegistry = Registry("nlu", {"templates": "rl4dialog.tasks.dialogue_acts.pipeline:TemplateNlu"}, provided=("world",))
NlgRegistry = Registry("nlg", {"templates": "rl4dialog.tasks.dialogue_acts.pipeline:TemplateNlg"}, provided=("world",))
TrackerRegistry = Registry("tracker", {}, provided=("world",))

EnvRegistry = Registry(
    "environment",
    {
        "dialogue_acts": "rl4dialog.envs.dialogue_acts:DialogueActEnv",
        "text_generation": "rl4dialog.envs.text_generation:TextGenEnv",
        "turn_goals": "rl4dialog.rollouts.turn_goals.vec_env:TurnGoalVecEnv",
    },
    provided=(
        *(
            "goal_split",
            "keeps_transcripts",
            "task",
            "task_args",
            "turn_reward",
            "nlu",
            "nlg",
            "tracker",
            "end_of_turn",
        ),
        *("samples", "reward_parts", "vocab_size", "partner", "outside_partner", "frame", "shares_dialogues"),
        *("speaker", "estimator", "outcomes", "n_envs", "is_numbered", "best_order"),
    ),
)

SpeakerRegistry = Registry(
    "speaker",
    {
        "lm": "rl4dialog.partners.language_model:LanguageModelSpeaker",
        "scripted": "rl4dialog.tasks.turn_goals:ScriptedSpeaker",
    },
    provided=("max_prompt_length", "max_length"),
)

EstimatorRegistry = Registry(
    "estimator",
    {
        "bag_of_words": "rl4dialog.rollouts.turn_goals.estimators:BagOfWords",
        "hidden_mean": "rl4dialog.rollouts.turn_goals.estimators:HiddenMean",
        "ranking_loss": "rl4dialog.rollouts.turn_goals.estimators:RankingEstimator",
    },
    provided=("personas",),
)

TurnRewardRegistry = Registry(
    "turn-level reward",
    {
        "convlab2_reward": "rl4dialog.tasks.dialogue_acts.outcome:ConvLab2Reward",
        "task_reward": "rl4dialog.tasks.dialogue_acts.outcome:TaskReward",
    },
)

TurnWarmStartRegistry = Registry(
    "turn-level warm start",
    {
        "bc": "rl4dialog.algorithms.turn_level.behaviour_cloning:warm_start_by_cloning",
        "replay": "rl4dialog.algorithms.turn_level.behaviour_cloning:warm_start_by_replay",
    },
)

TurnAlgorithmRegistry = Registry(
    "turn-level algorithm",
    {
        "a2c": "stable_baselines3:A2C",
        "bc": "rl4dialog.algorithms.turn_level.behaviour_cloning:BehaviourCloning",
        "crossq": "sb3_contrib:CrossQ",
        "ddpg": "stable_baselines3:DDPG",
        "double_dqn": "rl4dialog.algorithms.turn_level.iterations:DoubleDQN",
        "dqn": "stable_baselines3:DQN",
        "gdpl": "rl4dialog.algorithms.turn_level.gdpl:GDPL",
        "maskable_ppo": "sb3_contrib:MaskablePPO",
        "ppo": "stable_baselines3:PPO",
        "qrdqn": "sb3_contrib:QRDQN",
        "sac": "stable_baselines3:SAC",
        "td3": "stable_baselines3:TD3",
        "tqc": "sb3_contrib:TQC",
        "trpo": "sb3_contrib:TRPO",
    },
    adapter="rl4dialog.algorithms.turn_level.iterations:with_iterations",
    provided=(
        *("policy", "env", "policy_kwargs", "seed", "tensorboard_log", "replay_buffer_class", "replay_buffer_kwargs"),
        *("rollout_buffer_class", "rollout_buffer_kwargs", "_init_setup_model"),
    ),
)

TurnPolicyRegistry = Registry(
    "turn-level policy", {"mlp_policy": "rl4dialog.policies.saving:mlp_policy"}, provided=("observation_space",)
)

WordlePlayerRegistry = Registry(
    "Wordle player",
    {
        "consistent": "rl4dialog.tasks.wordle.players:ConsistentPlayer",
        "either": "rl4dialog.tasks.wordle.players:EitherPlayer",
        "info_gain": "rl4dialog.tasks.wordle.players:InfoGainPlayer",
        "mixture": "rl4dialog.tasks.wordle.players:MixturePlayer",
        "monte_carlo": "rl4dialog.tasks.wordle.players:MonteCarloPlayer",
        "random": "rl4dialog.tasks.wordle.players:RandomPlayer",
        "repeat": "rl4dialog.tasks.wordle.players:RepeatPlayer",
        "wrong": "rl4dialog.tasks.wordle.players:WrongPlayer",
    },
    provided=("game",),
)

InfoFnRegistry = Registry(
    "info function", {"returns": "rl4dialog.rollouts.collector:spread_of_returns"}, provided=("record",)
)

CallbackRegistry = Registry(
    "callback",
    {
        "early_stopping": "rl4dialog.training.callbacks.configurable:EarlyStopping",
        "every_n_iterations": "rl4dialog.training.callbacks.configurable:EveryNIterations",
        "every_n_timesteps": "rl4dialog.training.callbacks.configurable:EveryNTimesteps",
        "save_best_model": "rl4dialog.training.callbacks.configurable:SaveBestModel",
        "stop_on_reward_threshold": "rl4dialog.training.callbacks.configurable:StopOnRewardThreshold",
    },
    provided=("evaluations", "save_model", "run_folder", "build_callback"),
)
