"""Reward models: a config that trains one in seconds, and an untrained one on disk."""

import torch

from rl4dialog.data.dialogue_text import FORMAT
from rl4dialog.scores.reward_models import RewardModelCard, member_folder
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer

TEXTS = ["User: hello there", "Assistant: how are you?", "User: fine", "Assistant: good to know"]


def make_config(**overrides):
    """Three short epochs on replies of generated dialogues; overrides replace blocks."""
    return {
        "seed": 0,
        "tokenizer": {"model_name": "builtin/tiny-bert", "vocab_size": 300, "max_length": 48},
        "datapool": {
            "id": "rated_dialogues",
            "args": {"dataset": "small_talk", "unit": "reply", "context_size": 1, "max_size": 24},
        },
        "alg": {
            "id": "reward_model",
            "model_name": "builtin/tiny-bert",
            "training_args": {
                "num_train_epochs": 3,
                "per_device_train_batch_size": 8,
                "learning_rate": 1e-3,
                "logging_steps": 2,
            },
        },
        "train_evaluation": {"eval_every": 1, "save_every": 1, "keep_last": 9},
        **overrides,
    }


def save_reward_model(folder, unit="reply", context_size=None, n_members=1, **changes):
    """Save a reward model with random weights."""
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    for number in range(n_members):
        torch.manual_seed(number)
        model = tiny_bert(tokenizer, num_labels=1, problem_type="regression")
        model.save_pretrained(member_folder(folder, number, n_members))
        tokenizer.save_pretrained(member_folder(folder, number, n_members))
    settings = {"format": FORMAT, "unit": unit, "context_size": context_size, "ratings": ["good"]}
    settings |= {"truncation_side": "left", "scale": [1, 5], "mean": 0.5, "std": 0.1, "members": n_members}
    RewardModelCard(**{**settings, "offsets": [0.0] * n_members, **changes}).write(folder)
    return str(folder)
