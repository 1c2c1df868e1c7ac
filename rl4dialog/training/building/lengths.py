"""How long prompts and replies of a run may be."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from rl4dialog.core.config import RunConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.generation_blocks import reply_limit
from rl4dialog.data.run_data import Data
from rl4dialog.policies.models import named_model_positions
from rl4dialog.text.tokenizer import encode_prompt
from rl4dialog.training.supervised.examples import encode_reply

_NO_LIMIT = 2**20  # tokens


@dataclass
class Lengths:
    """In tokens.

    Attributes:
        prompt: Longest prompt that is answered.
        reply: Longest reply that is generated.
        truncation_side: Which end of a longer prompt is dropped.
        target: Longest reference that supervised training learns; a longer one loses its end, as a rollout would.
            ``None``: references are never cut.
        total: What supervised training takes of prompt and reference together, or of each in an encoder-decoder.
            ``None``: as much as the model has positions for.
        turn_end: Text behind every turn of a prompt, if prompts lose whole turns.
    """

    prompt: int
    reply: int
    truncation_side: str = "left"
    target: int | None = None
    total: int | None = None
    turn_end: str | None = None

    @property
    def room(self) -> int:
        """What a model needs positions for behind the longest prompt."""
        return max(self.reply, (self.total or 0) - self.prompt)


def run_lengths(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None = None, model_name: str | None = None
) -> Lengths:
    """Longest prompt and reply of a run.

    Without an ``env`` block they are the tokenizer's limit, at most the model's positions; where neither has one, what
    the data need.

    Args:
        config: Of the run.
        tokenizer: Of the run.
        data: Of the run, for models that are made to fit it.
        model_name: The language model where it is not the config's.

    Raises:
        ConfigError: If replies leave no room for a prompt.
    """
    if config.env is None:
        return _tokenizer_lengths(config, tokenizer, data, model_name or config.model_name)
    args = config.env.args
    return Lengths(
        args.max_prompt_length, reply_limit(config), args.prompt_truncation_side, target=args.max_episode_length
    )


def _tokenizer_lengths(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None, model_name: str
) -> Lengths:
    positions = named_model_positions(model_name)
    # A tokenizer without a limit says 1e30.
    known = [n for n in (int(tokenizer.model_max_length), positions) if n is not None and n < _NO_LIMIT]
    total = min(known, default=None)
    together, reply = not config.is_encoder_decoder, reply_limit(config)
    side = tokenizer.truncation_side
    turn_end = (data.turn_marker if data is not None else None) or tokenizer.eos_token
    if total is None and data is not None and data.pools:
        prompt, target = _longest_texts(tokenizer, data)
        return Lengths(prompt, reply, side, total=prompt + target if together else max(prompt, target))
    if total is None:
        return Lengths(_NO_LIMIT, reply, side)
    prompt = min(total, positions - reply) if together and positions is not None else total
    if prompt < 1:
        raise ConfigError(
            f"generation_kwargs.max_new_tokens is {reply}, which leaves no room for a prompt in the {positions} "
            f"positions of {model_name!r}; lower it"
        )
    return Lengths(prompt, reply, side, total=total, turn_end=turn_end)


def _longest_texts(tokenizer: PreTrainedTokenizerBase, data: Data) -> tuple[int, int]:
    """Tokens of the longest prompt, and of the longest reference with its end, of all splits."""
    samples = [sample for split in data.pools for sample in data.samples(split)]
    prompt = max(len(encode_prompt(tokenizer, sample.prompt_or_input_text, None)) for sample in samples)
    targets = (encode_reply(tokenizer, text, data.turn_marker) for sample in samples for text in sample.references)
    return prompt, max(map(len, targets), default=1)
