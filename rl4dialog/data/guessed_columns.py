"""What the columns of a table are: prompts and replies, dialogues or ratings; guessed from their names and cells."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rl4dialog.core.errors import DataError
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import Notes, speaker_of, transcript_of
from rl4dialog.data.rows import ELSEWHERE, UTF_8, Row, csv_text, is_blank, is_empty, read_rows, table_suffix
from rl4dialog.data.tables import Columns, Example, columns_of, examples_of, in_order, whole_dialogues

POOLS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "jsonl"}
N_READ = 2000
"""Rows that are read to guess columns and lengths."""
_NAMES = packaged_yaml(Path(__file__).with_suffix(".yaml"))
_MOST_SPEAKERS = 10  # names of roles, and not of persons
_BYTES_OF_WORD = 6
_FEWEST_GROUPS = 12  # so that each split has some
_SMALL_FILE = 2**19  # bytes
_SHARE_WHOLE = 0.95  # of prompts and replies that fit into the lengths
_NUMBERED = re.compile(r"\D*?(\d+)\D*")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LETTER = r"[^\W\d_]"
# Two words, or a writing without spaces between them.
_TEXT = re.compile(rf"{_LETTER}\S*\s.*{_LETTER}|[\u0e00-\u0eff\u3040-\u30ff\u4e00-\u9fff]{{4}}", re.DOTALL)

Cells = Mapping[str, Sequence[Any]]
"""Cells that are not empty, by column."""
Ask = Callable[[str, str | None], str | None]
"""Asks a person a question with the answer that is likely."""


@dataclass(frozen=True)
class Table:
    """What a file's columns mean, its first samples, and what was left out of its first rows."""

    path: Path
    columns: dict[str, Any]  # as in YAML
    guessed: str  # from what, if they are
    n_rows: int  # that have samples
    examples: Sequence[tuple[Row, Example]]
    notes: Notes
    is_small: bool  # whether all of it can be read at once
    unread: Sequence[str] = ()
    ratings: str = ""  # a column of them, with its values
    has_rewards: bool = False
    form: Mapping[str, str] = field(default_factory=dict)  # encoding and delimiter, if they are not usual
    goal: str | None = None  # column of what the partner wants
    people: str | None = None  # column that names people
    group: str | None = None  # column whose rows are from the same conversation, of prompts and replies

    @property
    def has_replies(self) -> bool:
        return "references" not in self.columns or self.columns["references"] is not None

    @property
    def n_prompt_words(self) -> int:
        return _long([_n_words(example.text) for _, example in self.examples])

    @property
    def n_messages(self) -> int:
        return _long([len(example.messages) for _, example in self.examples])

    @property
    def n_partner_words(self) -> int:
        said = (one for _, example in self.examples for one in example.messages if one["role"] == "user")
        return _long([_n_words(one["content"]) for one in said])

    @property
    def n_reply_words(self) -> int | None:
        return _long([_n_words(each.references[0]) for _, each in self.examples]) if self.has_replies else None


def read_table(
    path: Path, prompt: str | None = None, reply: str | None = None, agent: str | None = None, ask: Ask | None = None
) -> Table:
    """Read the beginning of a table, and guess what its columns are, if they are not given."""
    if table_suffix(path) not in POOLS:
        cure = "for other data, set the datapool of a config by hand (see docs/datapools.md)"
        raise DataError(f"{path} must be a .csv, .tsv, .jsonl, .json or .parquet file; {cure}")
    is_csv, form = POOLS[table_suffix(path)] == "csv", dict[str, str]()
    if is_csv:
        found = csv_text(path)
        form |= {} if found.encoding == UTF_8 else {"encoding": found.encoding}
        form |= {} if found.is_usual else {"delimiter": found.delimiter}
    rows = [*itertools.islice(read_rows(path), N_READ)]
    if not rows:
        raise DataError(f"{path} has no rows; it needs one for each prompt")
    names = [*dict.fromkeys(itertools.chain.from_iterable(row.values for row in rows))]
    for key, name in (("--prompt", prompt), ("--reply", reply)):
        if name is not None and name not in names:
            raise DataError(f"{key} {name}: {path} has no such column; it has {', '.join(names)}")
    cells = {name: [row.values[name] for row in rows if not is_blank(row.values.get(name))] for name in names}
    columns, guessed = None if prompt or reply else _dialogues(rows, cells), "from their names"
    if columns is None and prompt is None:
        columns, guessed = _pair(path, cells, reply, ask)
    elif columns is None:
        columns, guessed = {"prompt": prompt, "references": reply}, ""
    if agent is not None:
        columns["agent"] = agent
    chosen, whole, notes = columns_of(cast(Columns, columns)), rows, Notes()
    if chosen["conversation"] is not None:
        whole = [*whole_dialogues(rows, chosen)]
        chosen = {**chosen, "dialogue": chosen["text"]}
    try:
        examples = [
            (row, example)
            for _, row, example in examples_of(whole, chosen, None, DialogueFormat("eou", None), notes, is_csv)
        ]
    except DataError as error:
        flag = ", with --agent NAME" if "set columns.agent" in str(error) else ""
        raise DataError(f"{error}{flag}") from error
    if not examples:
        left_out = "; ".join(f"{what}: {n}" for what, n in notes.items() if n)
        raise DataError(f"{path} has no sample with the columns {columns} ({left_out}); set --prompt and --reply")
    used = [each for name in columns.values() for each in ([name] if isinstance(name, str) else name or [])]
    unused = [name for name in names if name not in used and name != "current_node"]
    grouping = [name for name in unused if "prompt" in columns and _are_groups(cells[name], len(rows))]
    group = _with_word(grouping, _NAMES["conversations"])
    ratings = filter(None, (_ratings(name, cells[name], len(rows)) for name in unused))
    said = [each for row in rows for each in _listed(row.values.get(str(columns.get("dialogue")))) or ()]
    has_rewards = "dialogue" in columns and (
        not {"reward", "rewards"}.isdisjoint(names) or any(isinstance(one, Mapping) and "reward" in one for one in said)
    )
    return Table(
        path,
        columns,
        guessed,
        len({row.place for row, _ in examples}),
        examples,
        notes,
        len(rows) < N_READ or path.stat().st_size < _SMALL_FILE,
        [name for name in unused if name != group],
        next(ratings, ""),
        has_rewards,
        form,
        _with_word(unused, _NAMES["goals"]),
        _with_word([name for name in unused if _are_people(cells[name])], _NAMES["people"]),
        group,
    )


def _are_people(cells: Sequence[Any]) -> bool:
    """Whether cells can be names or numbers of people, who have several conversations."""
    return not any(isinstance(cell, list | Mapping) for cell in cells) and 3 <= len({*map(str, cells)}) < len(cells)


def _are_groups(cells: Sequence[Any], n_rows: int) -> bool:
    """Whether cells can be numbers of conversations with several rows each."""
    return len(cells) == n_rows and _FEWEST_GROUPS <= len({*map(str, cells)}) <= n_rows / 1.5


def _dialogues(rows: Sequence[Row], cells: Cells) -> dict[str, Any] | None:
    """Columns of dialogues: a list in one, an utterance in each of several, or an utterance in each row."""
    if "mapping" in cells and "current_node" in cells:
        return {"dialogue": "mapping"}
    usual = [name for each in _NAMES["dialogues"] if (name := _first(cells, [each])) is not None]
    for name in dict.fromkeys([*usual, *cells]):
        said = [one for cell in cells[name][:100] if (one := _listed(cell))]
        keys = [_key("speaker", one[0]) for one in said[:1]]
        if 2 * len(said) > len(cells[name][:100]) and (name in usual or (keys[0] and _key("text", said[0][0]))):
            system = {"system": "system"} if not all(map(is_empty, cells.get("system", ()))) else {}
            speakers = [[str(one.get(keys[0])) for one in each if isinstance(one, Mapping)] for each in said]
            return {"dialogue": name, **system, **(_agent(speakers) if keys[0] else {})}
    numbered = [(int(match[1]), name) for name in cells if (match := _NUMBERED.fullmatch(name))]
    stems = {speaker_of(name) for _, name in numbered if _is_text(cells[name])}
    turns = [name for _, name in sorted(numbered, key=lambda each: each[0]) if speaker_of(name) in stems]
    if len(stems) in (1, 2) and len(turns) > len(stems):
        return {"dialogue": turns, **_agent([[*map(speaker_of, turns)]])}
    return _utterances(rows, cells)


def _utterances(rows: Sequence[Row], cells: Cells) -> dict[str, Any] | None:
    """Columns of a table with one utterance in each row."""

    def named(kind: str) -> list[str]:
        return [name for name in cells if cells[name] and _words(name) & {*_NAMES[kind]}]

    texts = [name for name in cells if _is_text(cells[name])]
    own = [name for name in named("conversations") if len({*map(str, cells[name])}) <= len(cells[name]) / 1.5]
    values = {name: {str(cell).lower() for cell in cells[name]} for name in cells}
    known = {*ELSEWHERE["agents"], *ELSEWHERE["people"]}
    few = [name for name in cells if 2 <= len(values[name]) <= _MOST_SPEAKERS]
    speakers = [name for name in few if values[name] & known] or [name for name in few if name in named("speakers")]
    times = [name for name in named("orders") if name not in own and in_order(rows, name) is not None]
    if not texts or not own or not (speakers or (times and len(texts) == 1)):
        return None
    text = _first(texts, ELSEWHERE["keys"]["text"]) or max(texts, key=lambda name: sum(map(len, map(str, cells[name]))))
    columns: dict[str, Any] = {"conversation": own[0], "text": text}
    columns |= {"order": times[0]} if times else {}
    if speakers:
        columns["speaker"] = speakers[0]
        whole = whole_dialogues(rows, columns_of(cast(Columns, columns)))
        columns |= _agent([[str(one[speakers[0]]) for one in row.values[text]] for row in whole])
    return columns


def _agent(speakers: Sequence[Sequence[str]]) -> dict[str, str]:
    """The agent of two speakers with names that say nothing: who does not begin most dialogues."""
    names = {name for said in speakers for name in said}
    known = {*ELSEWHERE["agents"], *ELSEWHERE["people"], *ELSEWHERE["tools"], "system"}
    if len(names) != 2 or not known.isdisjoint(name.lower() for name in names):
        return {}
    [(first, _)] = Counter(said[0] for said in speakers if said).most_common(1)
    return {"agent": next(name for name in names if name != first)}


def _pair(path: Path, cells: Cells, reply: str | None, ask: Ask | None) -> tuple[dict[str, Any], str]:
    """Columns of prompts and replies: those with usual names or words, or the only two texts."""
    names, texts = [*cells], [name for name in cells if _is_text(cells[name]) and name != reply]
    prompts, replies, guessed = _NAMES["prompts"], _NAMES["replies"], "from their names"
    pairs = ((_first(texts, [name]), _first(texts, others)) for name, others in _NAMES["pairs"].items())
    prompt = _first(texts, prompts)
    reply = reply or _first([name for name in names if name != prompt], replies)
    if reply is None:
        prompt, reply = next((pair for pair in pairs if all(pair)), (prompt, None))
    if prompt is None and len(names) == 2 and reply is not None:
        prompt = next(name for name in names if name != reply)
    reply = reply or _with_word([name for name in texts if name != prompt], replies)
    if prompt is None:
        guessed = "from their names and texts"
        reply = reply or _with_word(texts, _NAMES["answerers"])
        others = [name for name in texts if name != reply]
        only = others if len(others) == (1 if reply else 2) else names if len(names) == 1 else []
        prompt = _with_word(others, [*prompts, *_NAMES["askers"]])
        prompt = prompt or next(iter(only), None) or _first([name for name in names if name != reply], prompts)
        if reply is None and prompt is not None and len(others) == 2:
            reply = next(name for name in others if name != prompt)
        if ask is not None:
            print(f"{path} has the columns {', '.join(names)}.")
            prompt = ask("Column with the prompts", prompt)
            reply = ask("Column with the replies, if there are any", reply)
    if prompt not in names or reply not in (None, *names):
        proposed = map(shlex.quote, texts[:2] if len(texts) > 1 else ["COLUMN", "COLUMN"])
        cure = "Say which one has the prompts, and which one the replies, if there are any"
        flags = f"--prompt {next(proposed)} --reply {next(proposed)}"
        raise DataError(f"the columns of {path} cannot be guessed: it has {', '.join(names)}. {cure}: {flags}")
    return {"prompt": prompt, "references": reply}, guessed


def _ratings(name: str, cells: Sequence[Any], n_rows: int) -> str:
    """A column of ratings with its values; empty for others."""
    if not cells or not _words(name) & {*_NAMES["ratings"]}:
        return ""
    values, where = {str(cell).strip().lower() for cell in cells}, f"in {len(cells)} of {n_rows} rows"
    if values <= {*_NAMES["judgements"]}:
        return f"{name} ({' or '.join(sorted(values))}, {where})"
    try:
        numbers = [*map(float, values)]
    except ValueError:
        return ""
    return f"{name} ({min(numbers):g} to {max(numbers):g}, {where})"


def _first(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    lower = {name.lower().strip(): name for name in reversed([*names])}
    return next((lower[each] for each in wanted if each in lower), None)


def _with_word(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in names if _words(name) & {*wanted}), None)


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def _is_text(cells: Sequence[Any]) -> bool:
    return sum(_TEXT.search(str(cell)) is not None for cell in cells if not isinstance(cell, list)) > len(cells) / 2


def _listed(cell: Any) -> list[Any] | None:
    """A list in a cell, which CSV files have as JSON, or as a text in which somebody speaks twice or is known."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            cell = json.loads(cell)
    elif isinstance(cell, str) and (said := transcript_of(cell)):
        names = {one["speaker"] for one in said}
        return said if len(said) > len(names) or any(name.lower() in ELSEWHERE["agents"] for name in names) else None
    return cell if isinstance(cell, list) else None


def _key(kind: str, utterance: Any) -> str | None:
    return next((key for key in ELSEWHERE["keys"][kind] if isinstance(utterance, Mapping) and key in utterance), None)


def _n_words(text: str) -> int:
    """Number of words, which are counted as several if they are long or have no spaces between them."""
    return max(len(text.split()), len(text.encode()) // _BYTES_OF_WORD)


def _long(lengths: Sequence[int]) -> int:
    return sorted(lengths)[math.ceil(_SHARE_WHOLE * len(lengths)) - 1] if lengths else 0
