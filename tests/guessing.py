"""Runs in which a model of random weights guesses what its partner thinks of."""

from runs import make_config

GUESS_WHAT = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"path": "", "n_train": 32, "n_val": 4, "n_test": 8}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 16, "max_turns": 8, "partner": {"id": "guess_what"}},
    "train_evaluation__n_iters": 1,
    "train_evaluation__eval_batch_size": 4,
    "train_evaluation__max_eval_samples": 8,
    "train_evaluation__metrics": [{"id": "conversation"}],
}
GAME = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"n_train": 32, "n_val": 12, "n_test": 2}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 6, "max_turns": 3, "partner": {"id": "guess_what"}},
    "train_evaluation__eval_batch_size": 64,
    "train_evaluation__max_eval_samples": 12,
    "train_evaluation__metrics": [{"id": "conversation"}],
}


def guess_what(folder):
    config = make_config(folder, **GUESS_WHAT)
    config["datapool"]["args"].pop("path", None)
    return config
