"""Search for whole replies by their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import GenerationSettings, ending_tokens

if TYPE_CHECKING:
    from rl4dialog.features.offline.policies.value_guided import ValueGuidedMixin, ValueRerankedCausalLMPolicy

Sample = Callable[[Obs], Replies]  # samples one reply per prompt of observations


def guided_beams(policy: ValueGuidedMixin, obs: Obs, settings: GenerationSettings, limit: int, n_beams: int) -> Replies:
    """The reply to each prompt (B, P) with the highest log-probability under the guided policy.

    The log-probability is not divided by the length. With as many beams as there are beginnings of replies, the search
    is exhaustive. Of the settings, temperature and minimum length apply.
    """
    if replace(settings, min_length=0, do_sample=True).truncates:
        only = "so of generation_kwargs only temperature and the lengths apply; remove the others"
        raise ConfigError(f"alg.policy.args.guidance.search: beam does not sample, {only}")
    decoder, editors = policy._model_decoder(policy.language_model, obs), policy._step_editors(obs, settings)
    ends, device, n_prompts = policy.end_of_turn, decoder.context.device, len(decoder.context)
    best = [_Beam(prompt, float("-inf"), []) for prompt in range(n_prompts)]
    beams = [_Beam(prompt, 0.0, []) for prompt in range(n_prompts)]  # unfinished replies
    last_ids: Tensor | None = None
    for t in range(limit):
        hidden = decoder.next_hidden(last_ids)
        logits = decoder.logits(hidden) / settings.temperature
        for editor in editors:
            logits = editor.edit(logits, last_ids, hidden)
        log_probs = logits.log_softmax(dim=-1)
        if t < settings.min_length:
            log_probs = log_probs.masked_fill(ending_tokens(ends, log_probs), float("-inf"))
        scores = log_probs + torch.tensor([beam.score for beam in beams], device=device).unsqueeze(1)
        chosen = _continued(scores, beams, n_beams, best, lambda ids, t=t: ends.is_end(ids) or t + 1 == limit)  # type: ignore[misc]
        if not chosen:
            break
        beams = [beam for _, beam in chosen]
        last_ids = torch.tensor([beam.ids[-1] for beam in beams], device=device)
        rows = torch.tensor([row for row, _ in chosen], device=device)
        decoder.keep(rows)
        for editor in editors:
            editor.keep(rows)
    replies = Replies.from_ids([[0]] * n_prompts, [beam.ids for beam in best], device)
    replies.prompt_ids, replies.prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    replies.log_probs = policy.sequence_log_probs(replies)
    replies.unmasked_log_probs = policy.prior_log_probs(replies)
    return replies


class _Beam(NamedTuple):
    """A reply so far, with its log-probability."""

    prompt: int
    score: float
    ids: list[int]


def _continued(
    scores: Tensor, beams: list[_Beam], n_beams: int, best: list[_Beam], is_finished: Callable[[list[int]], bool]
) -> list[tuple[int, _Beam]]:
    """Next unfinished replies, and the row that each continues; better finished ones replace the ``best``."""
    chosen = []
    for prompt in dict.fromkeys(beam.prompt for beam in beams):
        rows = [row for row, beam in enumerate(beams) if beam.prompt == prompt]
        flat = scores[rows].flatten()
        # Of twice as many, at least n_beams do not end in a single token id; with markers, fewer may be left.
        found, places = flat.topk(min(len(flat), 2 * n_beams))
        n_kept = 0
        for score, place in zip(found.tolist(), places.tolist(), strict=True):
            if n_kept == n_beams or score <= best[prompt].score:  # a longer reply is never more likely
                break
            row = rows[place // scores.shape[1]]
            beam = _Beam(prompt, score, [*beams[row].ids, place % scores.shape[1]])
            if is_finished(beam.ids):
                best[prompt] = beam
            else:
                chosen.append((row, beam))
                n_kept += 1
    return chosen


@torch.no_grad()
def reranked(
    policy: ValueGuidedMixin | ValueRerankedCausalLMPolicy, sample: Sample, obs: Obs, settings: GenerationSettings
) -> Replies:
    """Of the replies sampled to each prompt, the one that the policy ranks highest; of equal ones the first."""
    n = policy.guidance.n_candidates
    if n > 1 and (not settings.do_sample or settings.num_beams > 1):
        problem = "generation_kwargs gives the same reply every time; set do_sample: true, without num_beams"
        raise ConfigError(f"alg.policy.args.guidance.n_candidates is {n}, but {problem}")
    replies = sample({name: each.repeat_interleave(n, dim=0) for name, each in obs.items()})
    rank = policy.ranks(replies).view(-1, n)
    return replies[rank.argmax(dim=1) + n * torch.arange(len(rank), device=rank.device)]
