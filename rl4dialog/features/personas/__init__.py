"""Conversations of people with personas, and what their partner learns about them."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

FEATURE = Feature(
    "conversations of people with personas, and rewards of what their partner learns about them",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    moved={
        "rl4dialog.data.persona_chat": f"{__name__}.persona_chat",
        "rl4dialog.scores.consistency": f"{__name__}.consistency",
        "rl4dialog.scores.persona_ranking": f"{__name__}.persona_ranking",
        "rl4dialog.tasks.get_acquainted": f"{__name__}.get_acquainted",
    },
    configs=(
        *("get_acquainted", "persona_chat", "benchmarks/get_acquainted.yml"),
        *("benchmarks/credit_or_critic.yml", "benchmarks/credit_or_critic_tuning.yml"),
    ),
    page=("personas.md", "coming_from/convogym.md"),
)
