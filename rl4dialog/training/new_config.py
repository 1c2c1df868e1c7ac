"""A commented config for a table of prompts and replies, for ``rl4dialog init``."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, Template

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.core.files import naming_errors, write_text
from rl4dialog.core.yaml_loader import shipped_path
from rl4dialog.data.rows import Row, parse_json, read_rows, table_suffix
from rl4dialog.runs.report.metrics import MIN_SAMPLES
from rl4dialog.training.building.components import import_and_check

CHAT_MODEL, TINY_MODEL = "builtin/smollm2-135m-instruct", "builtin/tiny-gpt2"
_POOLS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
_PROMPTS = ("prompt", "question", "instruction", "query", "input", "context", "source", "user", "post", "message")
_REPLIES = ("reply", "response", "answer", "completion", "output", "reference", "target", "assistant", "chosen")
# Names that mean prompt and reply only together.
_PAIRS = {
    **{"customer": ["agent"], "client": ["agent"], "user": ["agent", "bot"], "human": ["assistant", "bot", "gpt"]},
    **{"article": ["highlights", "summary"], "document": ["summary"]},
}
_DIALOGUES = ("messages", "conversations", "conversation", "dialogue", "dialog", "turns", "utterances")
_N_READ = 2000  # rows that are read to guess columns and lengths
_N_LEARNED = 10000  # replies of a warm start, repeated ones included
_TOKENS_PER_WORD = 1.5  # of English text, rounded up
_LARGEST_SHARE = 0.25  # of rows for validation, so that half of few rows are trained
_SHARE_WHOLE = 0.95  # of prompts and replies that fit into the lengths


@dataclass(frozen=True)
class Table:
    """What a file's columns mean: prompts, with or without replies, or dialogues; and the words of long ones."""

    path: Path
    columns: dict[str, str | None]  # as in YAML
    guessed: bool
    n_rows: int
    n_prompt_words: int
    n_reply_words: int | None
    unread: Sequence[str] = ()
    has_rewards: bool = False

    @property
    def has_replies(self) -> bool:
        return any(self.columns.get(key) is not None for key in ("dialogue", "references"))


def read_table(path: Path, prompt: str | None = None, reply: str | None = None) -> Table:
    """Read the beginning of a table, and guess which columns have prompts and replies, if they are not given."""
    if table_suffix(path) not in _POOLS:
        cure = "for other data, set the datapool of a config by hand (see docs/datapools.md)"
        raise DataError(f"{path} must be a .csv, .tsv, .jsonl or .json file; {cure}")
    rows = [*itertools.islice(read_rows(path), _N_READ)]
    if not rows:
        raise DataError(f"{path} has no rows; it needs one for each prompt")
    names = list(rows[0].values)
    for key, name in (("--prompt", prompt), ("--reply", reply)):
        if name is not None and name not in names:
            raise DataError(f"{key} {name}: {path} has no such column; it has {', '.join(names)}")
    dialogue = None if prompt or reply else _first(names, _DIALOGUES)
    if not str(rows[0].get(dialogue or "")).lstrip().startswith("["):  # a list, or JSON of one
        dialogue = None
    guessed = prompt is None
    if dialogue is None and prompt is None:
        prompt, reply = _guess(path, names, reply, rows)
    if dialogue is not None:
        dialogues = [_listed(row, dialogue) for row in rows]
        utterances = [[_text(each) for each in said] for said in dialogues]
        said = [len(text.split()) for texts in utterances for text in texts]
        before = [sum(len(text.split()) for text in texts[:-1]) for texts in utterances]
        unread = [name for name in names if name != dialogue]
        has_rewards = not {"reward", "rewards"}.isdisjoint(names) or any(
            isinstance(each, Mapping) and "reward" in each for said in dialogues for each in said
        )
        return Table(path, {"dialogue": dialogue}, True, len(rows), _long(before), _long(said), unread, has_rewards)
    assert prompt is not None
    replies = None if reply is None else _long([len(row.texts(reply)[0].split()) for row in rows if row.texts(reply)])
    prompts = _long([len(row.text(prompt).split()) for row in rows])
    unread = [name for name in names if name not in (prompt, reply)]
    columns = {"prompt": prompt, "references": reply}
    return Table(path, columns, guessed, len(rows), prompts, replies, unread)


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
        n_prompt=_tokens(table.n_prompt_words, 512),
        n_reply=_tokens(table.n_reply_words or 40, 128),
        is_tiny=is_tiny,
        n_epochs=max(3, math.ceil(_N_LEARNED / table.n_rows)) if is_tiny or (is_base and table.has_replies) else None,
        metrics=[*["chrf"] * table.has_replies, "length", "diversity"],
    )
    return _checked(text)


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
    return _checked(text)


def _with_block(text: str, key: str, block: str) -> str:
    return re.sub(rf"^{key}:\n(?: .*\n)+", lambda _: block, text, flags=re.MULTILINE)


def _datapool(table: Table, dialogue_format: str) -> str:
    columns = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in table.columns.items())
    return _DATAPOOL.format(
        columns="{" + columns + "}",
        guess="  # guessed from their names" if table.guessed else "",
        pool=_POOLS[table_suffix(table.path)],
        path=json.dumps(str(table.path), ensure_ascii=False),
        format=dialogue_format,
        share=min(_LARGEST_SHARE, max(0.1, math.ceil(100 * MIN_SAMPLES / table.n_rows) / 100)),
    )


def _reward(table: Table | None, id: str | None) -> str:
    if id is not None:
        return f"  id: {id}"
    return _SIMILARITY if table is not None and table.has_replies else _LENGTH


def _checked(text: str) -> str:
    import_and_check(parse_config(yaml.safe_load(text), "the new config"), Path("config.yml").absolute())
    return text


def write_config(path: Path, text: str, overwrite: bool = False) -> None:
    if path.exists() and not overwrite:
        raise RunFolderError(f"{path} exists already; choose another --output, or pass --overwrite")
    with naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def _guess(path: Path, names: Sequence[str], reply: str | None, rows: Sequence[Row]) -> tuple[str, str | None]:
    """Columns of prompts and replies: those with usual names, or the only two of a table."""
    texts = [name for name in names if sum(" " in str(row.get(name)) for row in rows) > len(rows) / 2]
    pairs = ((_first(texts, [name]), _first(texts, replies)) for name, replies in _PAIRS.items())
    prompt = _first([name for name in names if name != reply], _PROMPTS)
    reply = reply or _first([name for name in names if name != prompt], _REPLIES)
    if prompt is None and len(names) == 2 and reply is not None:
        prompt = next(name for name in names if name != reply)
    if reply is None and (pair := next((pair for pair in pairs if all(pair)), None)):
        prompt, reply = pair
    if prompt is None:
        proposed = map(shlex.quote, texts if len(texts) == 2 else ["COLUMN", "COLUMN"])
        cure = "Say which one has the prompts, and which one the replies, if there are any"
        flags = f"--prompt {next(proposed)} --reply {next(proposed)}"
        raise DataError(f"the columns of {path} cannot be guessed: it has {', '.join(names)}. {cure}: {flags}")
    return prompt, reply


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    lower = {name.lower().strip(): name for name in reversed(names)}
    return next((lower[each] for each in wanted if each in lower), None)


def _listed(row: Row, column: str) -> list[Any]:
    """Utterances of a dialogue, which CSV files have as JSON."""
    value = row[column]
    found = parse_json(value, f"{row.place}: column {column!r}") if isinstance(value, str) else value
    return found if isinstance(found, list) else []


def _text(utterance: Any) -> str:
    parts = utterance.values() if isinstance(utterance, Mapping) else [str(utterance)]
    return " ".join(part for part in parts if isinstance(part, str))


def _long(lengths: Sequence[int]) -> int:
    return sorted(lengths)[math.ceil(_SHARE_WHOLE * len(lengths)) - 1] if lengths else 0


def _tokens(n_words: int, limit: int) -> int:
    return min(limit, max(32, 16 * math.ceil((_TOKENS_PER_WORD * n_words + 8) / 16)))


_DATAPOOL = """\
datapool:
  id: {pool}
  args:
    path: {path}
    columns: {columns}{guess}
    format: {format}
    held_out_share: {share:g}  # of the rows, for validation, and as many for the test
"""
_SIMILARITY = "  id: meteor  # similarity to the reference reply\n  args: {synonyms: false}"
_LENGTH = "  id: length_penalty  # only to begin with\n  args: {min_length: 5, max_length: 30}"
