"""Sampling of replies, with one batched forward pass per token.

Unlike transformers' ``generate``, this sampler also ends replies at a text marker, returns the log-probability of each
token under the policy's own distribution, and removes finished replies from the batch. The filters are transformers'.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pydantic
import torch
from pydantic import Field
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rl4dialog.core.errors import ConfigError, TrainingError, nearest_hint, validation_message
from rl4dialog.functional.distributed import all_reduce_max
from rl4dialog.functional.log_probs import scale_logits, token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.decoding import Decoder
from rl4dialog.text.end_of_turn import EndOfTurn

T = TypeVar("T")


def parsed_settings(cls: type[T], given: Mapping[str, Any], where: str) -> T:
    """Settings, a pydantic dataclass, from the block of the config that messages call ``where``."""
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    for key in given:
        if key not in names:
            raise ConfigError(f"unknown key '{where}.{key}'{nearest_hint(key, names)} (known: {', '.join(names)})")
    try:
        return cls(**given)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{where}{validation_message(error.errors(), given)}") from error


# Keys from RL4LMs and transformers configs that do not affect sampling. The evaluation reads `post_processing_fn`.
_IGNORED = {"post_processing_fn", "use_cache", "pad_token_id"}
EVALUATION_ONLY = ("num_beams", "length_penalty", "early_stopping", "num_return_sequences", "max_length")
"""Settings for evaluating single replies only; see :mod:`rl4dialog.policies.beam_search`."""
MIN_TEMPERATURE = 0.01
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE, le=100, allow_inf_nan=False)]
"""Beyond it, replies are greedy, for which there is do_sample, or noise."""
NOT_IN_ROLLOUTS = (
    "rollouts must sample every token from the policy, because updates need its log-probability; move it to "
    "train_evaluation.generation_kwargs (to limit the length of replies in rollouts, use max_new_tokens)"
)
DIVERGED = (
    "the policy's logits are NaN or infinite, so it cannot generate replies: the training diverged. Lower its "
    "learning_rate and train again, with precision fp32 if it was another; checkpoints and results from before are kept"
)
NOT_IN_CONVERSATIONS = "it is only for the evaluation of single replies, not for conversations"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(strict=True))
class GenerationSettings:
    """Sampling settings, with transformers' names.

    ``temperature`` is part of the policy's distribution: it also scales the logits of every log-probability. All other
    settings affect only the sampler. ``min_length`` counts reply tokens, as in RL4LMs' configs. The settings from
    ``max_length`` on are for evaluations. ``max_length`` includes an encoder-decoder's start token, or a decoder-only
    model's prompt, padded to the longest.
    """

    do_sample: bool = True
    temperature: Temperature = 1.0
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    typical_p: float = Field(default=1.0, gt=0, le=1)
    min_length: int = Field(default=0, ge=0)
    max_new_tokens: int | None = Field(default=None, ge=1)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    no_repeat_ngram_size: int = Field(default=0, ge=0)
    max_length: int | None = Field(default=None, ge=1)
    num_beams: int = Field(default=1, ge=1)
    length_penalty: float = Field(default=1.0, allow_inf_nan=False)
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = Field(default=1, ge=1)

    @classmethod
    def from_kwargs(
        cls, kwargs: Mapping[str, Any] | None, where: str = "generation_kwargs", only_sampling: str | None = None
    ) -> GenerationSettings:
        """Parse and validate a ``generation_kwargs`` block, which messages call ``where``.

        If ``num_beams`` is above 1, ``do_sample`` defaults to false. ``only_sampling`` is the reason for rejecting
        :data:`EVALUATION_ONLY` settings; ``None`` accepts them.
        """
        given = {key: value for key, value in (kwargs or {}).items() if key not in _IGNORED}
        if "min_new_tokens" in given:
            given["min_length"] = given.pop("min_new_tokens")
        by_default = {key: getattr(cls, key, None) for key, value in given.items() if value is None}
        settings = parsed_settings(cls, {**given, **by_default}, where)
        for key in EVALUATION_ONLY if only_sampling is not None else ():
            if getattr(settings, key) != getattr(cls, key):
                raise ConfigError(f"{where}.{key} is not allowed here: {only_sampling}")
        if settings.min_length > (limit := settings.max_new_tokens or settings.max_length or math.inf):
            problem = f"{where}.min_length is {settings.min_length:,}, but replies have at most {limit:,} tokens"
            raise ConfigError(f"{problem}; lower it")
        if settings.num_beams > 1 and given.get("do_sample") is None:
            settings = replace(settings, do_sample=False)
        if settings.num_return_sequences > settings.num_beams and not settings.do_sample:
            n, fix = settings.num_return_sequences, "raise num_beams, or remove num_return_sequences"
            problem = f"{where}.num_return_sequences is {n}, but num_beams is only {settings.num_beams}"
            raise ConfigError(f"{problem}; {fix}: only one reply is evaluated")
        return settings

    def limited(self, longest: int, n_before: int) -> tuple[GenerationSettings, int]:
        """Settings that fit the maximum reply length, and that length; ``max_length`` includes ``n_before`` tokens."""
        wanted = self.max_new_tokens
        if wanted is None and self.max_length is not None:
            wanted = self.max_length - n_before
            if wanted < 1:
                problem = f"max_length is {self.max_length}, of which {n_before} are before the reply"
                raise ConfigError(f"generation_kwargs.{problem}; raise it, or use max_new_tokens instead")
        limit = min(wanted or longest, longest)
        return replace(self, min_length=min(self.min_length, limit)), limit

    @property
    def truncates(self) -> bool:
        """Whether the sampler can truncate the policy's distribution."""
        return self != GenerationSettings(temperature=self.temperature, max_new_tokens=self.max_new_tokens)

    def processors(self) -> LogitsProcessorList:
        """Filters that turn the policy's distribution into the sampler's, in transformers' order."""
        return used_filters(
            (self.repetition_penalty != 1.0, RepetitionPenaltyLogitsProcessor, self.repetition_penalty),
            (self.no_repeat_ngram_size > 0, NoRepeatNGramLogitsProcessor, self.no_repeat_ngram_size),
            (self.do_sample and self.top_k > 0, TopKLogitsWarper, self.top_k),
            (self.do_sample and self.top_p < 1, TopPLogitsWarper, self.top_p),
            (self.do_sample and self.typical_p < 1, TypicalLogitsWarper, self.typical_p),
        )


def used_filters(*filters: tuple[bool, Any, float]) -> LogitsProcessorList:
    """Those filters that are used, in order, each with its setting."""
    return LogitsProcessorList([make(value) for is_used, make, value in filters if is_used])


class StepEditor(ABC):
    """Edits the policy's next-token logits, and so its distribution; a ``decoder``, if any, is another model's."""

    def __init__(self, decoder: Decoder | None = None) -> None:
        self._decoder = decoder

    @abstractmethod
    def edit(self, logits: Tensor, last_ids: Tensor | None, hidden: Tensor) -> Tensor:
        """Edit the logits of the next token, which include the temperature. Shape (n, V) -> (n, V).

        ``last_ids`` (n,) are the previously chosen tokens, ``None`` in the first step; ``hidden`` (n, H) the policy's
        last hidden states.
        """

    def keep(self, rows: Tensor) -> None:
        if self._decoder is not None:
            self._decoder.keep(rows)


class SampledTokens(NamedTuple):
    """Next tokens of n unfinished replies: indices of the replies, token ids, log-probabilities. Shapes (n,)."""

    rows: Tensor
    ids: Tensor
    log_probs: Tensor


class Choice(NamedTuple):
    """Next tokens of n replies, and numbers of these tokens. Shapes (n,)."""

    ids: Tensor
    log_probs: Tensor  # under the policy's distribution, in nats
    unmasked_log_probs: Tensor  # the same without the editors
    sampler_log_probs: Tensor  # under the filtered distribution
    truncated_mass: Tensor  # probability that the filters cut off


def choose(
    logits: Tensor,
    unmasked: Tensor,
    context: Tensor,
    settings: GenerationSettings,
    processors: LogitsProcessorList,
    held_back: Tensor | None,
    draw: Callable[[Tensor], Tensor],
) -> Choice:
    """Choose the next tokens from the policy's ``logits`` (n, V), which are ``unmasked`` (n, V) before the editors.

    The filters read the ``context`` (n, L); tokens that are ``held_back`` (V,) are not chosen; ``draw`` draws from the
    softmax of logits, (n, V) -> (n,). Reads no number back from the device, if no filter does.
    """
    allowed = processors(context, logits.clone()) if processors else logits  # type: ignore[arg-type]
    if held_back is not None:
        allowed = allowed.masked_fill(held_back, float("-inf"))
    ids = draw(allowed) if settings.do_sample else allowed.argmax(dim=-1)
    log_probs = token_log_probs(logits, ids)
    return Choice(
        ids,
        log_probs,
        log_probs if logits is unmasked else token_log_probs(unmasked, ids),
        log_probs if allowed is logits else token_log_probs(allowed, ids),
        torch.zeros_like(log_probs)
        if allowed is logits
        else (logits.softmax(dim=-1) * torch.isinf(allowed)).sum(dim=-1),
    )


def all_steps(steps: Generator[SampledTokens, None, Replies]) -> Replies:
    """Run :func:`sample_steps` to its end and return the replies."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@torch.no_grad()
def sample_steps(
    decoder: Decoder,
    obs: Mapping[str, Tensor],
    settings: GenerationSettings,
    end_of_turn: EndOfTurn,
    max_new_tokens: int,
    editors: Sequence[StepEditor] = (),
    lockstep: bool = False,
    random: torch.Generator | None = None,
) -> Generator[SampledTokens, None, Replies]:
    """Sample one reply per prompt of the decoder and of ``obs``; yield the tokens of every step, return the replies.

    The sampler's filters follow the ``editors``. In ``lockstep``, steps continue, without adding tokens, until all
    processes have finished. The random generator is torch's global one by default.
    """
    n_replies, device = len(decoder.context), decoder.context.device
    shape = (n_replies, max_new_tokens)
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    reply_mask = torch.zeros(shape, dtype=torch.bool, device=device)
    numbers = torch.zeros(4, *shape, device=device)  # as in Choice

    def draw(allowed: Tensor) -> Tensor:
        return torch.multinomial(allowed.softmax(dim=-1), 1, generator=random).squeeze(1)

    processors = settings.processors()
    rows = torch.arange(n_replies, device=device)  # unfinished replies
    replies: list[list[int]] = [[] for _ in range(n_replies)]
    next_ids: Tensor | None = None
    held_back: Tensor | None = None
    idle = False  # finished here, but not in all other processes

    for t in range(max_new_tokens):
        hidden = decoder.next_hidden(next_ids)
        logits = unmasked = scale_logits(decoder.logits(hidden), settings.temperature)
        if not unmasked.amax(dim=-1).isfinite().all():  # the maximum of a row with NaN is NaN
            raise TrainingError(DIVERGED)
        for editor in editors:
            logits = editor.edit(logits, next_ids, hidden)
        if t == 0 and settings.min_length:
            held_back = ending_tokens(end_of_turn, logits)
        elif t == settings.min_length:
            held_back = None
        chosen = choose(logits, unmasked, decoder.context, settings, processors, held_back, draw)
        next_ids = chosen.ids

        unfinished = []
        if not idle:
            ids[rows, t] = next_ids
            reply_mask[rows, t] = True
            numbers[:, rows, t] = torch.stack(chosen[1:])
            yield SampledTokens(rows, next_ids, chosen.log_probs)
            for i, (row, token) in enumerate(zip(rows.tolist(), next_ids.tolist(), strict=True)):
                replies[row].append(token)
                if not end_of_turn.is_end(replies[row]):
                    unfinished.append(i)

        n_unfinished = all_reduce_max(len(unfinished)) if lockstep else len(unfinished)
        if not n_unfinished or t + 1 == max_new_tokens:
            break
        idle = not unfinished
        if len(unfinished) < len(rows):
            keep = torch.tensor(unfinished or [0], device=device)
            rows, next_ids = rows[keep], next_ids[keep]
            decoder.keep(keep)
            for editor in editors:
                editor.keep(keep)

    return sampled(obs, settings, ids, reply_mask, numbers, max(map(len, replies)))


def sampled(
    obs: Mapping[str, Tensor], settings: GenerationSettings, ids: Tensor, mask: Tensor, numbers: Tensor, length: int
) -> Replies:
    """Replies of ids and mask (n, T) and a :class:`Choice`'s numbers (4, n, T); the longest has ``length`` tokens."""
    log_probs, unmasked_log_probs, sampler_log_probs, truncated_mass = numbers[..., :length]
    return Replies(
        obs["prompt_ids"].long(),
        obs["prompt_mask"].bool(),
        ids[:, :length],
        mask[:, :length],
        log_probs=log_probs,
        unmasked_log_probs=unmasked_log_probs,
        truncated_mass=truncated_mass,
        sampler_log_probs=sampler_log_probs if settings.truncates and settings.do_sample else None,
    )


def ending_tokens(end_of_turn: EndOfTurn, logits: Tensor) -> Tensor:
    """Whether each token ends a reply by itself. Shape (n, V) -> (V,)."""
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    ends[sorted(end_of_turn.single_token_ids)] = True
    return ends


def without_beams(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Remove settings that apply only to the evaluation of single replies from a ``generation_kwargs`` block."""
    return {key: value for key, value in kwargs.items() if key not in EVALUATION_ONLY}
