"""Losses and gradients of GRPO's variants beside those of TRL's own trainers (make test-extras)."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from grouped import BETA, make_group_algorithm
from tiny import make_gpt2, make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GRPO
from rl4dialog.functional.losses import ClipRange
from rl4dialog.functional.replies import Replies, ReplySamples

pytest.importorskip("trl", reason="TRL is compared in an environment of its own: make test-extras")

LENGTHS, N_MAX = (5, 3, 1, 4), 5
# Arguments of ours, and attributes of TRL's trainer. Where a name of TRL's means something else, both are written out.
GSPO = {"ratio": "sequence", "loss_aggregation": "sequence_mean"}
OF_TRL = {
    "grpo": ({"loss_aggregation": "sequence_mean"}, {"loss_type": "grpo"}),
    "bnpo": ({"loss_aggregation": "token_mean"}, {"loss_type": "bnpo"}),
    "dr_grpo": ({"loss_aggregation": "constant"}, {"loss_type": "dr_grpo"}),
    "dapo": ({"loss_aggregation": "token_mean"}, {"loss_type": "dapo"}),
    "gspo": (GSPO, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    # CISPO's limit of the weight, which is not a distance from 1 in TRL; there is no lower one.
    "cispo": ({"surrogate": "cispo", "loss_aggregation": "token_mean"}, {"loss_type": "cispo", "epsilon_high": 2.0}),
}
CLIP = {"clip_range": 0.2, "clip_range_high": 0.4}


def numbers():
    """New, old and reference log-probabilities (B, T), mask, and an advantage per row; some ratios are clipped."""
    random = torch.Generator().manual_seed(0)
    old, shift, of_reference = torch.randn(3, 4, N_MAX, generator=random)
    mask = torch.arange(N_MAX) < torch.tensor(LENGTHS)[:, None]
    old = -1 - old.abs()
    return old + 0.8 * shift, old, old + 0.3 * of_reference, mask, torch.tensor([1.5, -0.7, 0.4, -1.2])


def loss_of_ours(kl, new, old, reference, mask, advantages, **settings):
    """Loss of a minibatch, and its gradient in the log-probabilities."""
    of_kl = {"kl_in": "loss", "kl_estimator": "k3"} if kl else {"kl_in": "reward"}
    trained = make_group_algorithm(GRPO, make_gpt2(make_tokenizer()), **of_kl, **settings)
    replies = Replies.from_ids([[3]] * 4, [list(range(4, 4 + length)) for length in LENGTHS])
    replies.log_probs, replies.ref_log_probs, replies.turn = old, reference, torch.zeros_like(mask)
    replies.advantages, replies.cut = advantages[:, None].expand_as(old), torch.zeros_like(old)
    new = new.clone().requires_grad_()
    trained.policy.evaluate_actions = lambda observations, actions: (None, new[mask], torch.zeros_like(new[mask]))
    batch = ReplySamples(replies)
    batch = batch.with_numbers(loss_weights=trained._loss_weights(batch))
    clip = ClipRange(trained.clip_range(1), trained.clip_range_high(1))
    loss = trained._gradient(batch, lambda part: trained._terms(part, clip))["loss"]
    return loss, new.grad


def bare(trainer, new, **attributes):
    """One of TRL's trainers, without what its loss does not read."""
    made = object.__new__(trainer)
    alone = {"reduce": lambda x, reduction: x, "gather": lambda x: x, "gather_for_metrics": lambda x: x}
    settings = {"use_bias_correction_kl": False, "delta": None, "steps_per_generation": 1}
    made.__dict__ |= {
        **{"aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "beta": 0.0},
        **{"epsilon_low": 0.2, "epsilon_high": 0.4, "importance_sampling_level": "token", "use_vllm": False},
        **{"current_gradient_accumulation_steps": 1, "max_completion_length": N_MAX, "_entropy_bonus_enabled": False},
        **{"model": SimpleNamespace(training=True), "_metrics": defaultdict(lambda: defaultdict(list))},
        **{"accelerator": SimpleNamespace(num_processes=1, **alone), "args": SimpleNamespace(**settings)},
        **{"_get_per_token_logps_and_entropies": lambda *args, **kwargs: (new, torch.zeros_like(new), None)},
        **attributes,
    }
    return made


def loss_of_trl(trainer, new, old, reference, mask, advantages, **attributes):
    """The same by TRL."""
    new, ids = new.clone().requires_grad_(), torch.zeros_like(mask, dtype=torch.long)
    inputs = {
        **{"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": mask.long()},
        **{"advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference},
        **{"num_items_in_batch": mask.sum(), "old_logps": (old * mask).sum(dim=1)},
    }
    loss = bare(trainer, new, **attributes)._compute_loss(None, inputs)
    loss.backward()
    return loss.detach(), new.grad


@pytest.mark.parametrize("kl", [False, True], ids=["", "k3"])
@pytest.mark.parametrize("name", OF_TRL)
def test_losses_and_gradients_are_those_of_trl(name, kl):
    from trl.trainer.grpo_trainer import GRPOTrainer

    settings, attributes = OF_TRL[name]
    clip = {"clip_range": 1.0, "clip_range_high": 1.0} if name == "cispo" else CLIP
    ours, gradient = loss_of_ours(kl, *numbers(), **clip, **settings)
    theirs, of_theirs = loss_of_trl(GRPOTrainer, *numbers(), **attributes, beta=BETA * kl)
    ratios = (numbers()[0] - numbers()[1])[numbers()[3]].exp()
    assert ratios.max() > 2 and ratios.min() < 0.8
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, of_theirs, rtol=1e-6, atol=1e-6)


def test_first_gradient_of_rloo_is_that_of_trl_divided_by_the_maximum_length():
    from trl.trainer.rloo_trainer import RLOOTrainer

    _, old, *others = numbers()
    _, gradient = loss_of_ours(False, old, old, *others, **CLIP, loss_aggregation="constant")
    _, of_theirs = loss_of_trl(RLOOTrainer, old, old, *others)
    torch.testing.assert_close(N_MAX * gradient, of_theirs, rtol=1e-6, atol=1e-6)
