"""Rows of this feature in tables of tests about all components."""

import pytest


def reward_model(training_args):
    from reward_models import make_config

    config = make_config()
    config["alg"] |= {"training_args": training_args, "ensemble": 2}
    return config


TRAINED_IN_EPOCHS = [pytest.param(reward_model, 4, marks=pytest.mark.long)]
CAN_TALK = [("ratings/small_talk", False)]
POOLS_WITHOUT_FILES = {
    "feedback": {"dataset": "small_talk", "max_size": 60},
    "rated_dialogues": {"dataset": "small_talk", "unit": "reply"},
}
WRONG_ARGUMENTS = ["datapool rated_dialogues: ratings=[]"]
