"""A plan of a comparison, small enough for a test."""

import yaml


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
    path.write_text(yaml.safe_dump({key: value for key, value in plan.items() if value is not None}))
    return path
