"""Encoder-decoder models: the prompt is encoded once, from wherever it is padded, and nothing depends on the cache."""

import pytest
import torch
from rows import evaluated
from tiny import make_bart, make_blenderbot, make_env, make_policy, make_t5, make_tokenizer, next_token

from rl4dialog.functional.replies import Replies
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 3]]
LONGEST = 5


@pytest.fixture(params=[make_t5, make_bart, make_blenderbot])
def policy(request):
    tokenizer = make_tokenizer()
    env = make_env(tokenizer, max_episode_length=8, end_of_turn=EndOfTurn(tokenizer, [0, 8]))
    return make_policy(env, request.param(tokenizer))


def observations(side="left"):
    ids, mask = torch.ones((3, LONGEST), dtype=torch.long), torch.zeros((3, LONGEST), dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        place = slice(LONGEST - len(prompt), LONGEST) if side == "left" else slice(len(prompt))
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return {"prompt_ids": ids, "prompt_mask": mask}


def test_prompt_is_encoded_once_for_a_whole_reply(policy):
    n_calls = 0

    def count(*args):
        nonlocal n_calls
        n_calls += 1

    policy.language_model.get_encoder().register_forward_hook(count)
    utterances = policy.generate(observations())
    assert utterances.response_ids.shape[1] > 1
    assert n_calls == 1
    evaluated(policy, utterances)
    assert n_calls == 2, "once per pass of an update"


def test_cache_gives_the_log_probs_of_a_fresh_pass_per_token(policy):
    utterances = policy.generate(observations())
    for prompt, ids, mask, log_probs in zip(
        PROMPTS, utterances.response_ids, utterances.response_mask, utterances.log_probs, strict=True
    ):
        reply = ids[mask].tolist()
        for t, token in enumerate(reply):
            logits, _ = next_token(policy.language_model, prompt, reply[:t])
            of_tokens = logits[: len(policy.end_of_turn.tokenizer)]  # T5 has more rows
            assert float(log_probs[t]) == pytest.approx(float(of_tokens.log_softmax(-1)[token]), abs=1e-4)


def test_side_of_the_padding_changes_nothing(policy):
    replies = torch.tensor([[9, 10, 11], [12, 0, 1], [13, 14, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
    results = []
    for side in ("left", "right"):
        obs = observations(side)
        batch = Replies(obs["prompt_ids"], obs["prompt_mask"].bool(), replies, mask)
        results.append([*evaluated(policy, batch), policy.reference_log_probs(batch)])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
