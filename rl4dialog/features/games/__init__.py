"""Games with a partner that follows rules: Wordle, a hidden picture, and those of TextArena."""

from pathlib import Path

from rl4dialog.core.features import Feature
from rl4dialog.core.yaml_loader import packaged_yaml

_MODULES = ("guess_the_picture", "text_arena", "wordle.datapool", "wordle.players", "wordle.rules")
FEATURE = Feature(
    "games with a partner that follows rules: Wordle, a hidden picture, and those of TextArena",
    ids=packaged_yaml(Path(__file__).with_name("catalog.yaml")),
    moved={f"rl4dialog.tasks.{name}": f"{__name__}.{name}" for name in _MODULES},
    configs=(
        *("guess_the_picture", "text_arena", "wordle"),
        *("benchmarks/credit_or_critic.yml", "benchmarks/credit_or_critic_tuning.yml"),
    ),
    page=("games.md", "wordle.md"),
)
