"""Train a text-generation model from a YAML config: ``--config_path task_configs/small_talk/gpt2_ppo.yml``."""

import sys

from rl4dialog.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main())
