"""A plan of a comparison, small enough for a test."""

import yaml

IN_WORLDS = {
    "worlds": {
        "short": {"config": "config.yml", "metric": "length/words", "set": ["env.args.max_episode_length=5"]},
        "long": {"config": "config.yml", "metric": "length/words", "ceiling": 9.0, "level": 2.0},
    },
    "seeds": [0, 1],
    "runs": {
        "PPO": {},
        "small": {"set": ["alg.args.learning_rate=1e-6"], "set_in": {"long": ["alg.args.n_epochs=2"]}},
        "smaller": {"adds_to": "small", "set": ["alg.args.learning_rate=1e-7"], "worlds": ["long"], "seeds": [1]},
    },
    "comparisons": [["PPO", "small"]],
}
"""Changes of a plan whose rows are trained in two worlds."""


def write_plan(folder, **changes):
    """Write a plan for the config beside it; ``None`` removes a key."""
    plan = {
        "title": "A title",
        "runs": {
            "PPO": {"config": "config.yml", "seeds": [0, 1]},
            "PPO, small steps": {"config": "config.yml", "seeds": [0], "set": ["alg.args.learning_rate=1e-6"]},
        },
        "set": ["train_evaluation.n_iters=1"],
        "metrics": {"lexical/rouge_rouge1": "Rouge-1"},
        **changes,
    }
    path = folder / "plan.yml"
    path.write_text(yaml.safe_dump({key: value for key, value in plan.items() if value is not None}, sort_keys=False))
    return path
