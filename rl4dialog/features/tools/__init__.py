"""Tools in conversations: calls among the agent's utterances that a tool answers instead of the partner."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

FEATURE = Feature(
    "tools in conversations, which answer calls of the agent in place of its partner",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    configs=("rides",),
    recommended={"rides/llama_ppo.yml": "an agent that calls tools"},
    page="tools.md",
)
