"""Train an intent classifier, used by the reward and the metric ``intent_accuracy``, from a labelled dialogue pool."""

import sys

from rl4dialog.cli import main_of

if __name__ == "__main__":
    sys.exit(main_of("classifier"))
