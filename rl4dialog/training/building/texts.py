"""What a run reads: its datapool, the world of its task, its tokenizer, and the limits of prompts and replies."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from transformers import PreTrainedTokenizerBase

from rl4dialog.catalog import DataPoolRegistry, TaskRegistry, ToolboxRegistry
from rl4dialog.core.config import OnPolicyConfig, RunConfig, TextConfig
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError, DataError, shown
from rl4dialog.core.pretrained import has_random_weights
from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import ChatMarkup
from rl4dialog.data.mixture import checked_pools
from rl4dialog.data.pool import SPLITS, Data, RewrittenPool, TextGenPool, built_world
from rl4dialog.policies.models import named_model_positions
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.prompts import encode_prompt, encode_reply, written_calls
from rl4dialog.text.tokenizer import build_tokenizer

_logger = logging.getLogger(__name__)
_warn_once = functools.cache(_logger.warning)  # data is built repeatedly


def build_pool(id: str, args: dict[str, Any], **offered: Any) -> TextGenPool:
    pool = DataPoolRegistry.get(id, args, **offered, build_pool=build_pool)
    if not isinstance(pool, TextGenPool):
        raise DataError(
            f"prepare of datapool {id!r} must return a TextGenPool, such as cls(samples), not {shown(pool)}"
        )
    return pool


def task_world(task: ComponentConfig | None) -> Callable[[], Any] | None:
    """Return what returns the world of a task, built once per process."""
    if task is None:
        return None
    return functools.partial(built_world, TaskRegistry.resolve(task.id), json.dumps(task.args, sort_keys=True))


_NO_LIMIT = 2**20  # tokens
_N_LOOKED_AT = 256  # samples of a split, for the lengths of their prompts


@dataclass
class Lengths:
    """Length limits in tokens."""

    prompt: int
    reply: int  # maximum length of generated replies
    truncation_side: str = "left"  # side from which longer prompts are truncated
    # Maximum length of references in supervised training. Longer ones lose their end, as in a rollout. ``None``:
    # references are never truncated.
    target: int | None = None
    # Maximum length of prompt and reply together in supervised training, or of each for an encoder-decoder. ``None``:
    # the number of the model's positions.
    total: int | None = None
    turn_end: str | None = None  # text after every turn of a prompt, if prompts are truncated by whole turns
    secret: int = 0  # maximum length of what only the critic reads, before a prompt; 0 if it reads nothing else

    @property
    def room(self) -> int:
        """Number of positions needed after the longest prompt."""
        return max(self.reply, (self.total or 0) - self.prompt)


def run_lengths(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data, model_name: str | None = None
) -> Lengths:
    """Length limits of a run: those of ``env``, else of tokenizer and model, else the longest texts of the data."""
    if config.env is None:
        return _tokenizer_lengths(config, tokenizer, data, model_name or config.model_name)
    args = config.env.args
    return Lengths(
        args.max_prompt_length,
        config.reply_limit,
        args.prompt_truncation_side,
        target=args.max_episode_length,
        # Logged replies can be longer than generated ones, and the model has to read them.
        total=args.max_prompt_length + args.max_episode_length if config.log else None,
        turn_end=data.turn_marker,  # as in rollouts
        secret=args.max_secret_length if isinstance(config, OnPolicyConfig) and config.critic_reads == "secret" else 0,
    )


def _tokenizer_lengths(config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data, model_name: str) -> Lengths:
    positions, together, reply = named_model_positions(model_name), not config.is_encoder_decoder, config.reply_limit
    # Tokenizers without a limit report 1e30.
    known = [n for n in (int(tokenizer.model_max_length), positions) if n is not None and n < _NO_LIMIT]
    total, side = min(known, default=None), tokenizer.truncation_side
    if total is None and data.pools:
        prompt, target = _longest_texts(tokenizer, data, in_encoder=not together)
        if config.prompt_prefix is not None:  # those of a log may be longer than the one that samples ask for
            prompt += len(tokenizer(config.prompt_prefix.characters, add_special_tokens=False)["input_ids"])
        return Lengths(prompt, reply, side, total=prompt + target if together else max(prompt, target))
    if total is None:
        return Lengths(_NO_LIMIT, reply, side)
    prompt = min(total, positions - reply) if together and positions is not None else total
    if prompt < 1:
        why = f"leaves no room for a prompt in the {positions} positions of {model_name!r}"
        raise ConfigError(f"generation_kwargs.max_new_tokens is {reply}, which {why}; lower it")
    return Lengths(prompt, reply, side, total=total, turn_end=data.turn_marker or tokenizer.eos_token)


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


@dataclass(frozen=True)
class Texts:
    """Tokenizer, samples and length limits of a run."""

    tokenizer: PreTrainedTokenizerBase
    data: Data
    lengths: Lengths


def warn_of_cut_prompts(texts: Texts) -> None:
    """Say of how many samples the prompts are longer than the limit, by a look at evenly spaced ones of each split."""
    limit, side = texts.lengths.prompt, texts.lengths.truncation_side
    for split in texts.data.pools:
        samples = texts.data.samples(split)
        some = [each.prompt_or_input_text for each in samples[:: max(1, math.ceil(len(samples) / _N_LOOKED_AT))]]
        lengths = [len(encode_prompt(texts.tokenizer, text, None)) for text in some]
        if n_cut := sum(length > limit for length in lengths):
            looked_at = " that were looked at" if len(some) < len(samples) else ""
            what = f"have more than env.args.max_prompt_length = {limit} tokens, up to {max(lengths)}"
            cut = f"lose their oldest turns or are cut on the {side}"
            _logger.warning(f"{n_cut} of {len(some)} {split} prompts{looked_at} {what}, and {cut}")


def build_run_tokenizer(config: TextConfig) -> tuple[PreTrainedTokenizerBase, Data]:
    """Build the tokenizer and the data, in the order of their dependency."""
    settings = config.tokenizer.model_dump()
    if has_random_weights(config.tokenizer.model_name):
        data = build_data(config)
        train = data.samples("train")
        corpus = [text for sample in train for text in texts_of(sample)]
        if config.prompt_prefix is not None:
            corpus.append(config.prompt_prefix.characters)
        return build_tokenizer(**settings, corpus=corpus, turn_marker=data.turn_marker), data
    tokenizer = build_tokenizer(**settings)
    return tokenizer, build_data(config, tokenizer)


def texts_of(sample: Sample) -> list[str]:
    """All texts of a sample that a model reads or writes; later utterances are one, as if continued."""
    texts = [sample.prompt_or_input_text, *sample.references]
    if continuation := (sample.meta_data or {}).get("continuation"):
        texts.append(" ".join(["", *continuation]))
    return texts


def build_data(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase | None = None, start: datetime | None = None
) -> Data:
    """Build all splits. Chat templates read the time ``start``, or this process's."""
    template = run_template(config, tokenizer, start) if tokenizer is not None else None
    offered, toolbox = {"render_chat": template}, build_toolbox(config, template)
    id, world = config.datapool.id, task_world(config.task)
    pools, prefix = {}, config.prompt_prefix
    for split in SPLITS:
        pool = build_pool(id, {**config.datapool.args, "split": split}, **offered, world=world)
        if len(pool) == 0:
            raise DataError(f"datapool {id!r} has no samples in split {split!r}{pool.why_empty}")
        if toolbox is not None and split == "train":
            report_faults(toolbox, pool)
        if toolbox is not None and toolbox.frame is not None:
            pool = RewrittenPool(pool, functools.partial(_with_calls, toolbox))  # type: ignore[abstract]
        pools[split] = pool if prefix is None else prefix.asking(pool)
    return Data(pools, getattr(pools["train"], "end_of_turn", None), world)


def can_talk(config: RunConfig) -> bool:
    """Whether a person can talk to what a run trains."""
    if isinstance(config, TextConfig) and config.task is None and format_args(config) is None:
        return False
    return config.can_talk


def build_toolbox(config: TextConfig, template: ChatTemplate | None) -> Toolbox | None:
    """The tools of a run, if it has any, prepared for the template if prompts are of it."""
    if config.env is None or (chosen := config.env.args.toolbox) is None:
        return None
    toolbox: Toolbox = ToolboxRegistry.get(chosen.id, chosen.args, pool_args=config.datapool.args)
    form = format_args(config)
    if template is not None and form is not None and form["format"] == "chat_template":
        toolbox.prepare(template, ChatMarkup(template).frame())
    return toolbox


def toolbox_of(config: TextConfig, texts: Texts) -> Toolbox | None:
    """Build the tools of a run's conversations, if it has any."""
    form = texts.data.pools["train"].dialogue_format
    return build_toolbox(config, form.render_chat if form is not None else None)  # type: ignore[arg-type]


def run_template(config: TextConfig, tokenizer: PreTrainedTokenizerBase, start: datetime | None) -> ChatTemplate:
    """The chat template of a run's prompts, which may list its tools."""
    template = ChatTemplate(tokenizer, start)
    build_toolbox(config, template)
    return template


def report_faults(toolbox: Toolbox, pool: TextGenPool) -> None:
    """Warn of calls to imitate that would be answered by an error."""
    found = Counter[str]()
    for sample, _ in pool:
        said = [*sample.references, *(sample.meta_data or {}).get("continuation", ())[1::2]]
        found.update(toolbox.fault(text) for text in said if toolbox.takes(text))
    n_calls, n_right = found.total(), found.pop("", 0)
    if found:
        what = "calls in the train split would be answered by an error, and the model learns to write them"
        _warn_once(f"{n_calls - n_right} of {n_calls} {what}; the most common one: {found.most_common()[0][0]}")


def _with_calls(toolbox: Toolbox, sample: Sample) -> Sample:
    """A sample whose calls of tools are as the run's format writes them."""
    prompt, replies = written_calls(toolbox, sample.prompt_or_input_text), map(toolbox.written, sample.references)
    return replace(sample, prompt_or_input_text=prompt, references=["".join(parts) for parts in replies])


def format_args(config: TextConfig) -> dict[str, Any] | None:
    """Format of the run's prompts, as arguments of other datapools; ``None`` if its datapool contains no dialogues."""
    id, given = config.datapool.id, config.datapool.args
    while "pools" in given:  # all datapools of a mixture have the same format
        first = checked_pools(given["pools"])[0]
        id, given = first.id, dict(first.args)
    args = {**DataPoolRegistry.defaults(id), **given}
    if args.get("format") is None:
        return None
    has_turns = config.env is not None and config.env.args.max_turns > 1
    # Samples of whole dialogues, which supervised training learns in the markup of conversations.
    of_dialogues = args.get("samples") == "dialogues" or args.get("turns") == "first" or args.get("learn") == "partner"
    in_conversation = has_turns or of_dialogues or bool(args.get("in_conversation"))
    return {"format": args["format"], "context_size": args.get("context_size"), "in_conversation": in_conversation}
