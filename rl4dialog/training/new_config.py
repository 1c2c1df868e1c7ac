"""A commented config for a table of prompts and replies, for ``rl4dialog init``."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, Template

from rl4dialog.catalog import DataPoolRegistry, RewardFunctionRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.core.files import naming_errors, write_text
from rl4dialog.core.plugins import load_entry_points
from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.core.yaml_loader import shipped_path
from rl4dialog.data.dialogue_format import DialogueFormat, Message
from rl4dialog.data.guessed_columns import N_READ, POOLS, Table
from rl4dialog.data.messages import render_messages
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.rows import table_suffix
from rl4dialog.data.splits import folded

CHAT_MODEL, TINY_MODEL = "builtin/smollm2-135m-instruct", "builtin/tiny-gpt2"
_N_LEARNED, _MOST_EPOCHS = 10000, 100  # replies of a warm start, repeated ones included, and its epochs
_TOKENS_PER_WORD = 2  # of languages like English and German, rounded up
_TOKENS_OF_TEMPLATE, _TOKENS_PER_MESSAGE = 40, 8  # what a chat template adds, with a system message of its own
_LARGEST_SHARE = 0.25  # of rows for validation, so that half of few rows are trained
_N_SHOWN, _LONGEST_SHOWN = 3, 300  # samples, and their characters
_HTML = re.compile(r"</[a-z][a-z0-9]*>|<br ?/?>|&(nbsp|amp|lt|gt|quot|#\d+);", re.IGNORECASE)


def config_text(table: Table, name: str, model: str = CHAT_MODEL, reward: str | None = None) -> str:
    """Write a commented config, named in its commands. The default reward is METEOR, or without replies a length."""
    is_tiny, is_base = model.startswith("builtin/tiny-"), _is_base(model)
    if is_tiny and not table.has_replies:
        cure = "give the column with replies (--reply), or a pretrained model (--model)"
        why = f"{model} has random weights, so it first has to learn replies"
        raise ConfigError(f"{why}, but {table.path} has none; {cure}")
    source = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    template = Template(source, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    text = template.render(
        name=name,
        data=table.path.name,
        model=model,
        datapool=_datapool(table, "eou" if is_tiny or is_base else "chat_template"),
        reward=_reward(table, reward),
        n_prompt=_prompt_tokens(table, is_tiny, is_tiny or is_base, 512),
        n_reply=_tokens(table.n_reply_words or 40, 128),
        is_tiny=is_tiny,
        is_base=is_base,
        n_epochs=_epochs(table, is_tiny or is_base, reward),
        metrics=[*["chrf"] * table.has_replies, "length", "diversity"],
    )
    return _checked(text, reward)


def partner_text(
    table: Table, name: str, model: str = CHAT_MODEL, goal: str | None = None, people: str | None = None
) -> str:
    """Write a commented config that learns the partner's side of a table of dialogues."""
    if not {"dialogue", "conversation"} & table.columns.keys():
        raise ConfigError(f"--learn partner needs dialogues, and {table.path} has prompts and replies")
    is_tiny = model.startswith("builtin/tiny-")
    sides = {"goal": goal or table.goal, "people": {"by": by} if (by := people or table.people) else None}
    known = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in sides.items() if value is not None)
    is_base = is_tiny or _is_base(model)
    source = Path(__file__).with_name("new_config_partner.txt").read_text(encoding="utf-8")
    text = Template(source, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined).render(
        name=name,
        data=table.path.name,
        model=model,
        datapool=f"{_datapool(table, 'eou' if is_base else 'chat_template')}    learn: partner\n{known}",
        n_prompt=_prompt_tokens(table, is_tiny, is_base, 1024, table.n_partner_words),
        n_reply=_tokens(table.n_partner_words, 128),
        is_tiny=is_tiny,
        n_epochs=_enough_epochs(table) if is_tiny else 3,
    )
    return _checked(text, None)


def partner_findings(table: Table, text: str) -> Iterator[str]:
    """What a person should know about the partner's side of a table, which is read as in a training."""
    config = yaml.safe_load(text)["datapool"]
    args = {**config["args"], "format": "eou"}
    if "goal" not in args:
        yield "No column with goals was found (--goal COLUMN): it will say what is likely, whatever a sample is about."
    if "people" not in args:
        yield "No column that names people was found (--people COLUMN): the same people may be in train and test."
    with _quiet():
        data = {name: DataPoolRegistry.get(config["id"], {**args, "split": name}) for name in SPLITS}
    notes: Counter[str] = sum((each.notes for each in data.values()), Counter())
    yield from (f"{what[0].upper()}{what[1:]}: {n:,}." for what, n in notes.items() if n)
    yield f"Conversations: {', '.join(f'{name} {len(each):,}' for name, each in data.items())}, such as:"
    for sample, _ in [*data["train"]][:_N_SHOWN]:
        said = " | ".join([sample.prompt_or_input_text, *sample.references, *(sample.meta_data or {})["continuation"]])
        yield f"  {said if len(said) <= _LONGEST_SHOWN else f'{said[:_LONGEST_SHOWN]} ...'}"


def _epochs(table: Table, is_base: bool, reward: str | None) -> int | None:
    """Epochs of a warm start: of models that cannot answer yet, and of others if replies are all that there is."""
    if not table.has_replies or not (is_base or reward is None):
        return None
    return _enough_epochs(table) if is_base else 3


def _enough_epochs(table: Table) -> int:
    """Epochs in which a model learns a language from a table."""
    return min(_MOST_EPOCHS, max(3, math.ceil(_N_LEARNED / table.n_rows)))


def _is_base(model: str) -> bool:
    """Whether a folder has a model that knows no chat template; what the hub has cannot be told without it."""
    folder = Path(model).expanduser()
    if model.startswith((".", "/", "~")) and not folder.is_dir():
        raise ConfigError(f"--model {model}: there is no such folder")
    config = folder / "tokenizer_config.json"
    is_known = config.is_file() and not (folder / "chat_template.jinja").is_file()
    return is_known and "chat_template" not in json.loads(config.read_text(encoding="utf-8"))


Recipe = tuple[str, str | None, dict[str, int]]
RECIPES: dict[str, Recipe] = {
    "qwen3-0.6b-8gb": ("qwen3_8gb", "Qwen/Qwen3-0.6B", {}),
    "llama-3.2-1b-8gb": ("qwen3_8gb", "meta-llama/Llama-3.2-1B-Instruct", {"micro_batch_size": 4}),
    "qwen3-1.7b-8gb": ("qwen3_8gb", "Qwen/Qwen3-1.7B", {"micro_batch_size": 4}),
    "qwen3-1.7b-24gb": ("qwen3_24gb", "Qwen/Qwen3-1.7B", {}),
    "llama-3.2-3b-24gb": ("qwen3_24gb", "meta-llama/Llama-3.2-3B-Instruct", {}),
    "qwen3-4b-24gb": ("qwen3_24gb", "Qwen/Qwen3-4B", {}),
    "qwen3-8b-24gb": ("qwen3_24gb", "Qwen/Qwen3-8B", {"n_envs": 32, "micro_batch_size": 4}),
    "qwen3-4b-80gb": ("qwen3_80gb", "Qwen/Qwen3-4B", {}),
    "qwen3-8b-80gb": ("qwen3_80gb", "Qwen/Qwen3-8B", {}),
}
"""Shipped file, model, and values of the file that are changed, by model and memory of the GPU."""


def recipe_text(
    recipe: str, name: str, table: Table | None = None, model: str | None = None, reward: str | None = None
) -> str:
    """Write a shipped recipe for a GPU, with one's own data, model and reward instead of those that it has.

    Raises:
        ConfigError: If there is no such recipe; the message has those for the same model or memory.
    """
    # The shipped files themselves are recipes, too.
    known: dict[str, Recipe] = {file.replace("_", "-"): (file, None, {}) for file, *_ in RECIPES.values()} | RECIPES
    if (id := recipe.lower().replace("_", "-")) not in known:
        of_model, _, memory = id.rpartition("-")
        fit = [each for each in RECIPES if each.startswith(f"{of_model}-") or each.endswith(f"-{memory}")]
        raise ConfigError(f"no recipe {recipe!r}; these fit: {', '.join(fit or RECIPES)}")
    file, of_recipe, changes = known[id]
    text = shipped_path(Path(f"task_configs/recipes/{file}.yml")).read_text(encoding="utf-8")
    script = f"python scripts/train_text_generation.py --config_path task_configs/recipes/{file}.yml"
    text = text.replace(script, f"rl4dialog train --config_path {name}")
    if (model := model or of_recipe) is not None:
        text = re.sub(r"(?<=model_name: ).*", lambda _: model, text)
        text = re.sub(r"\S+(?= with adapters)", lambda _: model, text, count=1)
        text = re.sub(r"# Also for .*\n", "", text)
    for key, value in changes.items():
        text = re.sub(rf"(?<= {key}: )\d+", str(value), text)
    if table is not None:
        text = _with_block(text, "datapool", _datapool(table, "chat_template"))
        text = text.replace("    - id: meteor\n", "    - id: chrf\n" if table.has_replies else "")
    if table is not None or reward is not None:
        text = _with_block(text, "reward_fn", f"reward_fn:\n{_reward(table, reward)}\n  normalize: batch\n")
    return _checked(text, reward)


def _with_block(text: str, key: str, block: str) -> str:
    return re.sub(rf"^{key}:\n(?: .*\n)+", lambda _: block, text, flags=re.MULTILINE)


def _datapool(table: Table, dialogue_format: str) -> str:
    columns = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in table.columns.items())
    return _DATAPOOL.format(
        columns="{" + columns + "}",
        guess=f"  # guessed {table.guessed}" if table.guessed else "",
        form="".join(f"    {key}: {json.dumps(value)}\n" for key, value in table.form.items()),
        group=f"    split_by: {json.dumps(table.group)}  # keeps its rows in one split\n" if table.group else "",
        pool=POOLS[table_suffix(table.path)],
        path=json.dumps(str(table.path), ensure_ascii=False),
        format=dialogue_format,
        share=min(_LARGEST_SHARE, max(0.1, math.ceil(100 * MIN_SAMPLES / table.n_rows) / 100)),
    )


def _reward(table: Table | None, id: str | None) -> str:
    if id is not None:
        return f"  id: {id}"
    return _SIMILARITY if table is not None and table.has_replies else _LENGTH


def _checked(text: str, reward: str | None) -> str:
    """The text of a config, checked without what takes seconds to load: all but the reward is known to be right."""
    parse_config(yaml.safe_load(text), "the new config")
    if reward is not None:
        load_entry_points()
        RewardFunctionRegistry.check(reward, {}, "reward_fn.args")
    return text


def findings(table: Table, text: str, reward: str | None = None) -> Iterator[str]:
    """What a person should know about a table and its config before a training."""
    config = yaml.safe_load(text)
    args = config["datapool"]["args"]
    if table.form:
        yield f"The file is read with {', '.join(f'{key} {value!r}' for key, value in table.form.items())}."
    if table.unread:
        yield f"Columns that it does not use: {', '.join(table.unread)}."
    if table.has_rewards:
        yield "It does not use the rewards of the log; docs/rated_logs.md shows how to learn from them."
    elif table.ratings:
        yield f"Ratings: {table.ratings}. It ignores them; docs/rated_logs.md shows how to learn from ratings."
    if table.group:
        yield f"Rows with the same {table.group} are in the same split (split_by)."
    if "conversation" in table.columns and "order" not in table.columns:
        yield "Utterances are in the order of the file: columns.order, a number or an ISO time, was not found."
    yield from _divided(config["datapool"]["id"], args, table)
    marked = [mark[0] for _, each in table.examples if (mark := _HTML.search(f"{each.text}\n{each.references[0]}"))]
    if marked:
        cure = "the model reads and writes it as text, so remove it first"
        yield f"HTML in {len(marked):,} of {len(table.examples):,} samples, such as {marked[0]}: {cure}."
    longest = config["env"]["args"]["max_episode_length"]
    if (n_words := table.n_reply_words or 0) * _TOKENS_PER_WORD > longest:
        cut = f"replies are cut after {longest} tokens, by env.args.max_episode_length and max_new_tokens"
        yield f"Long replies: one in twenty has more than {n_words} words, but {cut}."
    if table.has_replies and reward is None:
        imitated = "The model first imitates the replies (warm_start). " if "warm_start" in config else ""
        weak = "a weak reward, because a good reply can differ from it; docs/rewards.md has others, for --reward"
        yield f"{imitated}The reward is the similarity to a reply of the data: {weak}."
    yield from _shown(table, args["format"], config["tokenizer"]["model_name"])


def _divided(pool: str, args: dict[str, Any], table: Table) -> Iterator[str]:
    """What is left out, and what the splits have, as a training reads them."""
    notes, data, where = table.notes, dict[str, Any](), f" of the first {N_READ} rows"
    if table.is_small:
        try:
            with _quiet():
                read = {**args, "render_chat": _chat_ml} if args["format"] == "chat_template" else args
                data = {name: DataPoolRegistry.get(pool, {**read, "split": name}) for name in SPLITS}
            notes, where = sum((each.notes for each in data.values()), Counter()), ""
        except DataError as error:
            yield f"A training would stop: {error}"
    else:
        yield f"Only the first {N_READ:,} rows were read: train --dry_run counts the samples of the whole file."
    yield from (f"{what[0].upper()}{what[1:]}{where}: {n:,}." for what, n in notes.items() if n)
    if data:
        said = {name: {folded(sample.prompt_or_input_text) for sample, _ in each} for name, each in data.items()}
        n_known = len(said["test"] & (said["train"] | said["val"]))
        yield from [f"{data['train'].copies}."] if data["train"].copies else []
        sizes = ", ".join(f"{name} {len(each):,}" for name, each in data.items())
        known = f"{len(said['test']):,} different prompts, {n_known} of which are in train or val"
        yield f"Samples: {sizes}. The test has {known}."
        if min(len(data["val"]), len(data["test"])) < MIN_SAMPLES:
            few = f"that takes {MIN_SAMPLES} samples in val and in test, so about {4 * MIN_SAMPLES} rows without copies"
            yield f"This is too little data to judge whether a training helps: {few}."


def _chat_ml(messages: Sequence[Message]) -> str:
    """Messages as most chat templates write them, which is known without the model's own."""
    said = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    return f"{said}<|im_start|>assistant\n"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out warnings, which are printed in other words."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _shown(table: Table, dialogue_format: str, model: str) -> Iterator[str]:
    """Some samples as the model reads them."""
    different = {example.text: (row, example) for row, example in reversed(table.examples)}
    samples = sorted(different.values(), key=table.examples.index)[:_N_SHOWN]
    as_read = "the model reads them" if dialogue_format == "eou" else f"the chat template of {model} gets them"
    yield f"{len(samples)} sample{'s' * (len(samples) > 1)}, as {as_read}:"
    for row, example in samples:
        opening = [{"role": "system", "content": example.system}] if example.system else []
        said = [f"{each['role']}: {each['content']}" for each in (*opening, *example.messages)]
        if dialogue_format == "eou":
            with contextlib.suppress(DataError):  # what would stop a training
                said = [str(render_messages(example.messages, row, DialogueFormat("eou", None), example.system)[0])]
        for text in (*said, *(f"-> {reply}" for reply in example.references[:1] if reply)):
            text = " ".join(text.split())
            yield f"  {text if len(text) <= _LONGEST_SHOWN else f'{text[:_LONGEST_SHOWN]} ...'}"
        yield ""


def write_config(path: Path, text: str, overwrite: bool = False) -> None:
    if path.exists() and not overwrite:
        raise RunFolderError(f"{path} exists already; choose another --output, or pass --overwrite")
    with naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _prompt_tokens(table: Table, is_tiny: bool, is_base: bool, limit: int, n_more_words: int = 0) -> int:
    # A vocabulary of the train split writes other words in pieces.
    n_words = math.ceil((table.n_prompt_words + n_more_words) * (1.5 if is_tiny else 1))
    return _tokens(n_words, limit, 0 if is_base else _TOKENS_OF_TEMPLATE + _TOKENS_PER_MESSAGE * table.n_messages)


def _tokens(n_words: int, limit: int, n_markup: int = 0) -> int:
    return min(limit, max(32, 16 * math.ceil((_TOKENS_PER_WORD * n_words + n_markup + 8) / 16)))


_DATAPOOL = """\
datapool:
  id: {pool}
  args:
    path: {path}
    columns: {columns}{guess}
{form}{group}    format: {format}
    held_out_share: {share:g}  # of the rows, for validation, and as many for the test
"""
_SIMILARITY = "  id: meteor  # similarity to the reference reply\n  args: {synonyms: false}"
_LENGTH = "  id: length_penalty  # only to begin with\n  args: {min_length: 5, max_length: 30}"
