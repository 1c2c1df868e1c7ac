"""Search for replies of a value-guided policy: by beams of log-probability, or among samples by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.generation import GenerationSettings

if TYPE_CHECKING:
    from rl4dialog.policies.value_guided import ValueGuidedMixin
    from rl4dialog.policies.value_reranked import ValueRerankedCausalLMPolicy

Sample = Callable[[dict[str, Tensor]], Replies]
"""Samples one reply per prompt of observations."""


def guided_beams(
    policy: ValueGuidedMixin, obs: dict[str, Tensor], settings: GenerationSettings, limit: int, n_beams: int
) -> Replies:
    """Find the reply to each prompt with the highest log-probability under the guided policy.

    The log-probability is not divided by the length. With as many beams as there are beginnings of replies, the search
    is exhaustive.

    Args:
        policy: The policy.
        obs: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P).
        settings: Of these, temperature and minimum length apply.
        limit: Maximum number of tokens of a reply.
        n_beams: Unfinished replies kept per prompt.
    """
    if replace(settings, min_length=0, do_sample=True).truncates:
        raise ConfigError(
            "alg.policy.args.guidance.search: beam does not sample, so of generation_kwargs only temperature and the "
            "lengths apply; remove the others"
        )
    decoder = policy._model_decoder(policy.language_model, obs)
    editors, ends = policy._step_editors(obs, settings), policy.end_of_turn
    device = decoder.context.device
    held_back = torch.tensor(sorted(ends.single_token_ids), dtype=torch.long, device=device)
    n_prompts = len(decoder.context)
    best: list[tuple[float, list[int]]] = [(float("-inf"), []) for _ in range(n_prompts)]
    # Unfinished replies: the prompt, the log-probability and the tokens of each.
    beams: list[tuple[int, float, list[int]]] = [(prompt, 0.0, []) for prompt in range(n_prompts)]
    last_ids: Tensor | None = None
    for t in range(limit):
        hidden = decoder.next_hidden(last_ids)
        logits = decoder.logits(hidden) / settings.temperature
        for editor in editors:
            logits = editor.edit(logits, last_ids, hidden)
        log_probs = logits.log_softmax(dim=-1)
        if t < settings.min_length and len(held_back):
            log_probs = log_probs.index_fill(1, held_back, float("-inf"))
        scores = log_probs + torch.tensor([score for _, score, _ in beams], device=device).unsqueeze(1)
        chosen = _continued(scores, beams, n_beams, best, lambda ids, t=t: ends.is_end(ids) or t + 1 == limit)  # type: ignore[misc]
        if not chosen:
            break
        rows = torch.tensor([row for row, _, _ in chosen], device=device)
        last_ids = torch.tensor([ids[-1] for _, _, ids in chosen], device=device)
        beams = [(beams[row][0], score, ids) for row, score, ids in chosen]
        decoder.keep(rows)
        for editor in editors:
            editor.keep(rows)
    prompt_ids, prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    replies = Replies.from_ids([[0]] * n_prompts, [ids for _, ids in best], device)
    replies.prompt_ids, replies.prompt_mask = prompt_ids, prompt_mask
    replies.log_probs = policy.sequence_log_probs(replies)
    replies.unmasked_log_probs = policy.prior_log_probs(replies)
    return replies


def _continued(
    scores: Tensor,
    beams: list[tuple[int, float, list[int]]],
    n_beams: int,
    best: list[tuple[float, list[int]]],
    is_finished: Callable[[list[int]], bool],
) -> list[tuple[int, float, list[int]]]:
    """Select the next unfinished replies of each prompt: row of the beam, log-probability and tokens.

    Finished replies replace the ``best`` one of their prompt if they are better.
    """
    chosen = []
    for prompt in dict.fromkeys(prompt for prompt, _, _ in beams):
        rows = [row for row, beam in enumerate(beams) if beam[0] == prompt]
        flat = scores[rows].flatten()
        # Of twice as many, at least n_beams do not end in a single token id; with markers, fewer may be left.
        found, places = flat.topk(min(len(flat), 2 * n_beams))
        n_kept = 0
        for score, place in zip(found.tolist(), places.tolist(), strict=True):
            if n_kept == n_beams or score <= best[prompt][0]:  # a longer reply is never more likely
                break
            row = rows[place // scores.shape[1]]
            ids = [*beams[row][2], place % scores.shape[1]]
            if is_finished(ids):
                best[prompt] = score, ids
            else:
                chosen.append((row, score, ids))
                n_kept += 1
    return chosen


@torch.no_grad()
def reranked(
    policy: ValueGuidedMixin | ValueRerankedCausalLMPolicy,
    sample: Sample,
    obs: dict[str, Tensor],
    settings: GenerationSettings,
) -> Replies:
    """Sample ``n_candidates`` replies to each prompt and return the one with the highest rank, of equal ones the first.

    Args:
        policy: The policy, whose ``ranks`` compares replies.
        sample: Samples replies.
        obs: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P).
        settings: Settings of the samples.
    """
    n = policy.guidance.n_candidates
    if n > 1 and (not settings.do_sample or settings.num_beams > 1):
        raise ConfigError(
            f"alg.policy.args.guidance.n_candidates is {n}, but generation_kwargs gives the same reply every time; set "
            f"do_sample: true, without num_beams"
        )
    replies = sample({name: each.repeat_interleave(n, dim=0) for name, each in obs.items()})
    rank = policy.ranks(replies).view(-1, n)
    best = rank.argmax(dim=1) + n * torch.arange(len(rank), device=rank.device)
    return replies[best]
