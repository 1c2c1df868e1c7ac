"""Offline runs on random walks, small enough for a test."""

from runs import changed

WALKS = {
    "seed": 0,
    "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 300},
    "datapool": {"id": "random_walks", "args": {"n_train": 40, "n_val": 20, "n_test": 20}},
    "reward_fn": {"id": "shortest_path"},
    "env": {"args": {"max_prompt_length": 40, "max_episode_length": 8}},
    "alg": {
        "id": "ilql",
        "args": {"n_steps": 200, "batch_size": 100, "learning_rate": 1e-3, "polyak_rate": 0.5},
        "policy": {
            "id": "value_guided_causal_lm_policy",
            "args": {
                "model_name": "builtin/tiny-gpt2",
                "init_value": -7.0,
                "guidance": {"beta": 4.0},
                "generation_kwargs": {"do_sample": True, "top_k": 20},
            },
        },
    },
    "train_evaluation": {
        "n_iters": 1,
        "save_every": 1,
        "eval_batch_size": 10,
        "max_eval_samples": 2,
        "metrics": [{"id": "shortest_path"}],
    },
}


def walks_config(**overrides):
    """The config; overrides are dotted keys with ``__`` for the dot, and ``None`` removes a key."""
    return changed(WALKS, overrides, without=None)
