"""The tables that say what of other systems is taken in count right, and name tests and configs that exist."""

import re
from collections import Counter

import pytest
import torch
from feature_rows import rows_of_features
from pages import ROOT, text_of, yaml_of

from rl4dialog.functional.losses import ClipRange, clipped_surrogate, value_loss

SYSTEMS = ("rl4lms", "openrl", "convogym", "ilql", *rows_of_features("SYSTEMS"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_rows_are_counted_and_shown(system):
    page = text_of(f"docs/coming_from/{system}.md")
    rows = re.findall(r"^\| (.+) \| (yes|differs|no) \| (.+) \| (.*?) ?\|$", page, re.MULTILINE)
    counts = Counter(taken for _, taken, _, _ in rows)
    assert [int(n) for n in re.search(r"(\d+) yes,\s(\d+)\sdiffer,\s(\d+)\sno", page).groups()] == [
        counts[each] for each in ("yes", "differs", "no")
    ]
    assert len({name for name, *_ in rows}) > 10
    for name, taken, here, shown in rows:
        assert here and (taken == "no") != bool(shown), name
        for file in re.findall(r"`(.+?)`", shown):
            path = ROOT / ("" if file.startswith("task_configs") else "tests") / file
            is_deleted = (
                file.startswith("features/") and not (ROOT / "tests" / "features" / file.split("/")[1]).exists()
            )
            assert path.is_file() or is_deleted, (name, file)


def test_config_of_openrl_has_its_losses_and_pays_what_it_pays():
    """OpenRL halves squared and Huber errors, limits the ratio from above, and pays half a point for the right act."""
    config = yaml_of("docs/coming_from/openrl.md", "seed:")
    args, reward = config["alg"]["args"], config["reward_fn"]["args"]
    error = torch.tensor([0.5, -3.0, 25.0])
    theirs = 0.5 * torch.where(error.abs() <= 10, error**2 / 2, 10 * (error.abs() - 10 / 2))
    ours = value_loss(torch.zeros(3), torch.zeros(3), error, args["clip_range_vf"], args["huber_delta"])
    assert torch.allclose(args["vf_coef"] * ours, theirs)
    ratio, advantages = torch.tensor([0.5, 1.1, 2.0, 9.0]).repeat(2), torch.tensor([1.0, -2.0]).repeat_interleave(4)
    limited = ratio.clamp(max=3)
    their_loss = -torch.minimum(limited * advantages, limited.clamp(0.8, 1.2) * advantages)
    clip = ClipRange(args["clip_range"], args["clip_range"])
    assert torch.allclose(clipped_surrogate(ratio, advantages, clip, dual_clip=3), their_loss)
    assert (reward["shape"], reward["intent_coeff"]) == (False, 0.5)
    n_tokens = args["n_steps"] * config["env"]["n_envs"]
    assert (n_tokens // args["batch_size"], 100_000 // n_tokens) == (20, config["train_evaluation"]["n_iters"])
    assert {name: args[name] for name in ("ent_coef", "max_grad_norm", "gamma", "gae_lambda")} == {
        "ent_coef": 0.01,
        "max_grad_norm": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
    }
