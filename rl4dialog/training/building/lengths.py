"""Length limits of prompts and replies."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from rl4dialog.core.config import OfflineConfig, TextConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.return_prefix import ReturnPrefix
from rl4dialog.data.run_data import Data
from rl4dialog.policies.models import named_model_positions
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.training.building.returns import return_prefix

_NO_LIMIT = 2**20  # tokens


@dataclass
class Lengths:
    """Length limits in tokens.

    Attributes:
        prompt: Maximum prompt length.
        reply: Maximum length of generated replies.
        truncation_side: Side from which longer prompts are truncated.
        target: Maximum length of references in supervised training. Longer ones lose their end, as in a rollout.
            ``None``: references are never truncated.
        total: Maximum length of prompt and reply together in supervised training, or of each for an encoder-decoder.
            ``None``: the number of the model's positions.
        turn_end: Text after every turn of a prompt, if prompts are truncated by whole turns.
    """

    prompt: int
    reply: int
    truncation_side: str = "left"
    target: int | None = None
    total: int | None = None
    turn_end: str | None = None

    @property
    def room(self) -> int:
        """Number of positions needed after the longest prompt."""
        return max(self.reply, (self.total or 0) - self.prompt)


def run_lengths(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None = None, model_name: str | None = None
) -> Lengths:
    """Determine the length limits of a run.

    Without an ``env`` block, the limit is the tokenizer's, at most the number of the model's positions. If neither has
    a limit, the longest texts of the data set it.

    Args:
        config: The run's config.
        tokenizer: The run's tokenizer.
        data: The run's data, for models that are built to fit it.
        model_name: Language model, if it is not the config's.
    """
    if config.env is None:
        return _tokenizer_lengths(config, tokenizer, data, model_name or config.model_name)
    args = config.env.args
    return Lengths(
        args.max_prompt_length,
        config.reply_limit,
        args.prompt_truncation_side,
        target=args.max_episode_length,
        # Logged replies can be longer than generated ones, and the model has to read them.
        total=args.max_prompt_length + args.max_episode_length if isinstance(config, OfflineConfig) else None,
        turn_end=data.turn_marker if data is not None else None,  # as in rollouts
    )


def _tokenizer_lengths(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data | None, model_name: str
) -> Lengths:
    positions = named_model_positions(model_name)
    # Tokenizers without a limit report 1e30.
    known = [n for n in (int(tokenizer.model_max_length), positions) if n is not None and n < _NO_LIMIT]
    total = min(known, default=None)
    together, reply = not config.is_encoder_decoder, config.reply_limit
    side = tokenizer.truncation_side
    turn_end = (data.turn_marker if data is not None else None) or tokenizer.eos_token
    if total is None and data is not None and data.pools:
        prompt, target = _longest_texts(tokenizer, data, in_encoder=not together)
        if return_prefix(config) is not None:  # those of the log may be longer than the one that samples ask for
            prompt += len(tokenizer(ReturnPrefix.characters, add_special_tokens=False)["input_ids"])
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


def _longest_texts(tokenizer: PreTrainedTokenizerBase, data: Data, in_encoder: bool) -> tuple[int, int]:
    """Token counts of the longest prompt and of the longest reference with its end, over all splits."""
    samples = [sample for split in data.pools for sample in data.samples(split)]
    prompt = max(len(encode_prompt(tokenizer, sample.prompt_or_input_text, None)) for sample in samples)
    targets = (
        encode_reply(tokenizer, text, data.turn_marker, prompt="" if in_encoder else sample.prompt_or_input_text)
        for sample in samples
        for text in sample.references
    )
    return prompt, max(map(len, targets), default=1)
