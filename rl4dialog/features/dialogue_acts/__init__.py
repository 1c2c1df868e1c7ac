"""Turn-level runs, whose policy takes whole actions, and task-oriented dialogues in dialogue acts."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

_TASKS = (
    *("acts", "agenda", "dialogue", "goals", "ontology", "outcome", "pipeline", "placeholders", "templates"),
    *("text_task", "vectorizer", "world"),
)
FEATURE = Feature(
    "turn-level runs, whose policy takes whole actions, and task-oriented dialogues in dialogue acts",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    needs=("personas", "serving"),
    moved={
        "rl4dialog.algorithms.turn_level.behaviour_cloning": f"{__name__}.algorithms.behaviour_cloning",
        "rl4dialog.algorithms.turn_level.gdpl": f"{__name__}.algorithms.gdpl",
        "rl4dialog.algorithms.turn_level.iterations": f"{__name__}.algorithms.iterations",
        "rl4dialog.envs.dialogue_acts": f"{__name__}.tasks.environment",
        "rl4dialog.envs.gym_wrappers": f"{__name__}.gym_wrappers",
        "rl4dialog.inference.turn_level_agent": f"{__name__}.agent",
        "rl4dialog.rollouts.turn_goals.estimators": f"{__name__}.turn_goals.estimators",
        "rl4dialog.rollouts.turn_goals.vec_env": f"{__name__}.turn_goals.vec_env",
        "rl4dialog.scores.manual": f"{__name__}.turn_goals.manual",
        "rl4dialog.scores.tasks": f"{__name__}.turn_goals.metric",
        "rl4dialog.serving.task_chat": f"{__name__}.task_chat",
        "rl4dialog.tasks.camrest": f"{__name__}.tasks.camrest",
        "rl4dialog.tasks.multiwoz": f"{__name__}.tasks.multiwoz",
        "rl4dialog.tasks.town_guide": f"{__name__}.tasks.town_guide",
        "rl4dialog.training.turn_level.environments": f"{__name__}.environments",
        "rl4dialog.training.turn_level.trainee": f"{__name__}.trainee",
        **{f"rl4dialog.tasks.dialogue_acts.{name}": f"{__name__}.tasks.{name}" for name in _TASKS},
    },
    configs=(
        *("camrest", "cart_pole", "multiwoz", "town_guide", "benchmarks/camrest.yml", "benchmarks/multiwoz.yml"),
        "benchmarks/turn_goals.yml",
        *("get_acquainted/llama_goals_supervised.yml", "get_acquainted/turn_goals_dqn.yml"),
        "get_acquainted/turn_goals_lm_dqn.yml",
    ),
    recommended={"town_guide/ppo.yml": "an agent for a task, with a simulated user"},
    page=(
        *("dialogue_acts.md", "environments.md", "tasks_in_words.md", "families/turns.md"),
        "coming_from/convlab2.md",
    ),
)
