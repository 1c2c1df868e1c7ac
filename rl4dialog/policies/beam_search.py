"""Beam search by transformers' ``generate``, for evaluating single replies.

Rollouts and conversations do not support it: a beam is not a sample from the policy, so it cannot be used for training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.masks import left_aligned, trim_left_padding
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import decoder_start_id
from rl4dialog.text.end_of_turn import EndOfTurn

if TYPE_CHECKING:
    from rl4dialog.policies.value_guided import ValueGuidedMixin, ValueRerankedCausalLMPolicy


@torch.no_grad()
def beam_search(
    model: PreTrainedModel,
    obs: dict[str, Tensor],
    settings: GenerationSettings,
    end_of_turn: EndOfTurn,
    max_new_tokens: int,
    pad_token_id: int,
    only_tokens: Callable[..., Tensor],
) -> Replies:
    """The best reply to each prompt by beam search, without log-probabilities.

    Prompts ``prompt_ids`` (B, P) are padded on the left; T is the length limit. Settings that are not given come from
    the model's generation config. ``only_tokens`` excludes ids without a token from logits, in place.
    """
    prompt_ids, prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    if model.config.is_encoder_decoder:
        ids, mask = left_aligned(prompt_ids, prompt_mask)
        n_before = 1
    else:
        ids, mask = trim_left_padding(prompt_ids, prompt_mask)
        n_before = ids.shape[1]
    config = _generation_config(model, settings, end_of_turn, max_new_tokens, pad_token_id)

    def exclude(module: Any, args: Any, output: Any) -> None:
        only_tokens(output.logits, in_place=True)

    # Before the log-softmax, unlike a processor of logits, so that scores are log-probabilities of the policy.
    hook = model.register_forward_hook(exclude)
    try:
        sequences = model.generate(  # type: ignore[operator]
            inputs=ids,
            attention_mask=mask.long(),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([_EndsReply(end_of_turn, n_before)]),
        )
    finally:
        hook.remove()
    found = sequences[:, n_before:]
    lengths = torch.tensor([_n_tokens(row.tolist(), end_of_turn) for row in found], device=found.device)
    longest = int(lengths.max())
    mask = torch.arange(longest, device=found.device) < lengths[:, None]
    return Replies(prompt_ids, prompt_mask, found[:, :longest].masked_fill(~mask, pad_token_id), mask)


def _generation_config(
    model: PreTrainedModel,
    settings: GenerationSettings,
    end_of_turn: EndOfTurn,
    max_new_tokens: int,
    pad_token_id: int,
) -> GenerationConfig:
    sampling: dict[str, Any] = {}
    if settings.do_sample:
        sampling = {name: getattr(settings, name) for name in ("temperature", "top_k", "top_p", "typical_p")}
    if model.config.is_encoder_decoder:
        sampling["decoder_start_token_id"] = decoder_start_id(model)
    return GenerationConfig(
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        do_sample=settings.do_sample,
        min_new_tokens=settings.min_length,
        max_new_tokens=max_new_tokens,
        repetition_penalty=settings.repetition_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        num_return_sequences=1,  # only the best is evaluated
        eos_token_id=sorted(end_of_turn.single_token_ids) or None,
        pad_token_id=pad_token_id,
        **sampling,
    )


class _EndsReply(StoppingCriteria):
    """Ends a beam at the end of a reply, including turn markers of several tokens."""

    def __init__(self, end_of_turn: EndOfTurn, n_before: int) -> None:
        self._end_of_turn, self._n_before = end_of_turn, n_before

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        replies = input_ids[:, self._n_before :].tolist()
        return torch.tensor([self._end_of_turn.is_end(reply) for reply in replies], device=input_ids.device)


def _n_tokens(reply: list[int], end_of_turn: EndOfTurn) -> int:
    ends = (n for n in range(1, len(reply) + 1) if end_of_turn.is_end(reply[:n]))
    return next(ends, len(reply))


Sample = Callable[[dict[str, Tensor]], Replies]
"""Samples one reply per prompt of observations."""


def guided_beams(
    policy: ValueGuidedMixin, obs: dict[str, Tensor], settings: GenerationSettings, limit: int, n_beams: int
) -> Replies:
    """The reply to each prompt (B, P) with the highest log-probability under the guided policy.

    The log-probability is not divided by the length. With as many beams as there are beginnings of replies, the search
    is exhaustive. Of the settings, temperature and minimum length apply.
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
    """Of the replies sampled to each prompt, the one that the policy ranks highest; of equal ones the first."""
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
