"""Learning from logged conversations without rollouts."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

_ON_WORDLE = ("awac", "bc", "chai", "cql", "decision_transformer", "filtered_bc", "ilql", "mc_returns", "psi_learning")
FEATURE = Feature(
    "learning from logged conversations without rollouts: ILQL, CQL, CHAI, behaviour cloning and others",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    moved={
        "rl4dialog.policies.lagging_values": f"{__name__}.policies.lagging_values",
        "rl4dialog.policies.value_guided": f"{__name__}.policies.value_guided",
        "rl4dialog.rollouts.conversation_log": f"{__name__}.conversation_log",
        "rl4dialog.tasks.comment_reply": f"{__name__}.tasks.comment_reply",
        "rl4dialog.tasks.random_walks": f"{__name__}.tasks.random_walks",
        "rl4dialog.training.building.offline": f"{__name__}.building",
        **{
            f"rl4dialog.algorithms.offline.{name}": f"{__name__}.algorithms.{name}"
            for name in ("base", "bc", "chai", "q_learning")
        },
    },
    configs=(
        *("comment_reply", "random_walks", "guess_the_picture/llama_bc.yml", "guess_the_picture/llama_ilql.yml"),
        *(f"small_talk/gpt2_{name}_on_ppo_log.yml" for name in ("awac", "bc", "ilql")),
        *(f"wordle/llama_{name}.yml" for name in _ON_WORDLE),
    ),
    recommended={"comment_reply/llama_ilql.yml": "from logged replies with rewards"},
    page=("offline.md", "offline_tasks.md", "families/logs.md"),
)
