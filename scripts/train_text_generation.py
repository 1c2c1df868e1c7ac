"""Train a text-generation model from a YAML config: ``--config_path task_configs/small_talk/gpt2_ppo.yml``."""

import sys

from rl4dialog.cli import main_of

if __name__ == "__main__":
    sys.exit(main_of("train"))
