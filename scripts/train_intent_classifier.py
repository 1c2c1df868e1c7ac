"""Train an intent classifier from a labelled dialogue pool, for the reward and the metric ``intent_accuracy``."""

import sys

from rl4dialog.cli import main_of

if __name__ == "__main__":
    sys.exit(main_of("classifier"))
