"""Learning from people: what they are to judge, reward models of their judgements, and improvement of a run."""

from rl4dialog.core.features import Feature

FEATURE = Feature(
    "learning from people: what they are to judge, reward models of their judgements, and improvement of a run",
    ids={
        "kind of run": {"reward_model": f"{__name__}.config:RewardModelConfig"},
        "datapool": {
            "feedback": f"{__name__}.judged_texts:FeedbackPool",
            "rated_dialogues": f"{__name__}.judged_texts:RatedDialogues",
        },
    },
    commands=f"{__name__}.commands",
    moved={
        "rl4dialog.commands.learning_from_people": f"{__name__}.commands",
        "rl4dialog.data.judged_texts": f"{__name__}.judged_texts",
        "rl4dialog.experiments.improvement": f"{__name__}.improvement",
        "rl4dialog.inference.model_comparison": f"{__name__}.model_comparison",
        "rl4dialog.inference.queue_selection": f"{__name__}.queue_selection",
        "rl4dialog.training.reward_model.models": f"{__name__}.models",
        "rl4dialog.training.reward_model.trainee": f"{__name__}.trainee",
    },
    configs=("benchmarks/human_ratings", "benchmarks/human_ratings.yml", "feedback", "ratings"),
    recommended={"ratings/small_talk.yml": "a reward model from ratings"},
    page="feedback.md",
)
