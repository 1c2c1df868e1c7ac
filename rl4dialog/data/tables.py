"""Any dataset with prompts and references in columns: from the hub, JSON lines or CSV, with column names in YAML.

A prompt is a text, or a dialogue formatted by a `DialogueFormat`; a column can also contain whole dialogues.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import ConfigDict
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, Message, RenderChat, n_instructions
from rl4dialog.data.messages import (
    NoReply,
    Notes,
    dialogue_messages,
    dialogue_replies,
    log_notes,
    prompt_messages,
    render_messages,
)
from rl4dialog.data.pool import SPLITS, TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import FilePath, Row, expand_path, is_blank, is_empty, report_unread
from rl4dialog.data.sides import Learned, People, Sides
from rl4dialog.data.splits import (
    DRAW_HINT,
    Copies,
    HeldOutShare,
    Said,
    SplitPath,
    dataset_readers,
    dataset_rows,
    file_readers,
    load_hub_dataset,
    load_saved_dataset,
    split_reader,
)

_HUB_HINT = "Set the existing ones: splits: {train: NAME, val: NAME, test: NAME}" + DRAW_HINT


class Columns(TypedDict, total=False):
    """Names of the columns. Dots refer to nested columns (``answers.text``)."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    # The prompt: a text, or a list of utterances, which are texts of alternating speakers or have speaker and text.
    prompt: str
    references: str | None  # reference reply, or list of references; ``None`` for data without: one empty reference
    id: str | None  # id, which must be unique within its split; by default the row number
    weight: str | None  # relative sampling weight in training; by default equal for all
    meta_data: list[str]  # columns passed to rewards and metrics under the same names
    system: str | None  # system message before the prompt or dialogue; only with a format
    # Whole dialogues of such utterances, instead of prompt and references: each reply of the agent is a sample, or each
    # utterance after the first if speakers have no names. In CSV files they are encoded as JSON.
    # A list of columns has an utterance in each (``[customer_1, agent_1, customer_2]``); in a text, each begins a line
    # with its speaker (``User: hello``).
    dialogue: str | list[str] | None
    # For rows with one utterance each, the column that all rows of a dialogue share. ``text`` and ``speaker`` are then
    # columns, too, and ``order`` one with a time or a number, if the rows are not in order.
    conversation: str | None
    order: str | None
    # Key of an utterance's speaker; by default ``role``, ``speaker``, ``from``, ``author``, ``sender`` or ``name``.
    speaker: str | None
    # Key of an utterance's text; by default ``content``, ``text``, ``utterance``, ``value`` or ``message``.
    text: str | None
    # The speaker whose role the model takes; by default ``assistant``, ``agent``, ``bot``, ``gpt``, ``chatgpt`` or
    # ``model``, or ``system`` who takes turns with another speaker, or else the only one who is not ``user``, ``usr``,
    # ``human``, ``customer`` or ``prompter``.
    agent: str | None


Template = list[tuple[str, str | None]]
_OF_UTTERANCES = ("speaker", "text", "agent")
_DEFAULTS: Columns = {
    **dict.fromkeys(  # type: ignore[typeddict-item]
        ("system", "id", "weight", "dialogue", "conversation", "order", *_OF_UTTERANCES)
    ),
    "prompt": "prompt",
    "references": "reference",
    "meta_data": [],
}


class _TablePool(TextGenPool):
    r"""Samples from rows, with the names of their columns. Rows without a prompt or reply are left out, and counted.

    Args:
        columns: Names of the columns; see `Columns`.
        prompt_template: Template of the prompt, with columns in braces, such as ``"Question: {question}\nAnswer:"``.
            Double braces stand for braces.
        format: Format of dialogues: ``eou`` or ``chat_template``. A text prompt is then a single user message. Without
            a format, prompts are texts, used verbatim.
        split_by: Column such as a user, whose rows are all in the same split of those sampled by ``held_out_share``. By
            default, rows with equal prompts or dialogues are, but for case, whitespace and punctuation.
        context_size: Maximum number of utterances in a prompt, without the system message; ``None`` for all.
    """

    id: ClassVar[str]
    notes: Notes  # what was left out
    copies: str  # how many rows are copies of others

    @classmethod
    def _of_rows(
        cls,
        draw: Callable[..., Callable[[], Iterable[Row]]],
        split: str,
        source: str,
        columns: Columns | None,
        prompt_template: str | None,
        max_size: int | None,
        dialogue_format: DialogueFormat | None,
        split_by: str | None,
        sides: Sides,
        split_seed: int,
    ) -> Self:
        chosen, template = columns_of(columns), None if prompt_template is None else _parts(prompt_template)
        _check_columns(chosen, template, dialogue_format)

        def said(row: Row) -> Said:
            if _empty(row, chosen, template, cls.id == "csv"):
                return Said("", "", [])
            if sides.learn == "partner" and sides.people is not None:
                return sides.person_of(row)
            found = [*_examples(row, chosen, template, dialogue_format, Notes())]
            prompts = [example.text for example in found]
            text = f"{prompts[-1]} {found[-1].references[0]}" if chosen["dialogue"] else prompts[0]
            if split_by is None and sides.people is not None:
                return sides.person_of(row)._replace(text=text, prompts=prompts)
            return Said(text if split_by is None else row.text(split_by), text, prompts)

        copies, notes, places = Copies(said), Notes(), dict[str, str]()
        if chosen["conversation"] is not None:
            copies.whole = functools.partial(whole_dialogues, columns=chosen, anywhere=sides.columns)
            chosen = {**chosen, "dialogue": chosen["text"]}
        if sides.people is not None:
            whole = copies.whole
            copies.whole = lambda rows: sides.chosen([*whole(rows)].copy, split_seed)
        rows = draw(copies=copies)()

        def samples() -> Iterator[tuple[tuple[Sample, float], str]]:
            own = chosen["id"]
            for index, row, each in examples_of(rows, chosen, template, dialogue_format, notes, cls.id == "csv"):
                id = index if own is None else row[own]
                if own is not None and (first := places.setdefault(row.text(own), row.place)) != row.place:
                    raise row.error(f"column {own!r} has the same id, {shown(id)}, as {first}")
                weight = 1.0 if chosen["weight"] is None else _weight(row, chosen["weight"])
                meta_data, prompt = {name: row[name] for name in chosen["meta_data"]} | sides.about(row), each.text
                if dialogue_format is not None:
                    prompt, meta_data["history"] = render_messages(each.messages, row, dialogue_format, each.system)
                id = id if each.number is None else f"{id}_{each.number}"
                yield (Sample(id, prompt, each.references, meta_data), weight), each.text

        if sides.learn == "partner":
            if dialogue_format is None or chosen["dialogue"] is None:
                raise DataError("learn: partner needs dialogues: set columns.dialogue or conversation, and format")
            dialogue_format = replace(dialogue_format, context_size=None, in_conversation=True)
            of_partner = sides.samples(_dialogues(rows, chosen, notes), dialogue_format, split, notes, max_size)
            kept = [(sample, 1.0) for sample in of_partner]
        else:
            kept = copies.kept([*itertools.islice(samples(), max_size)], notes)
        log_notes(notes, f"{source}, {split}")
        found = limit_samples((sample for sample, _ in kept), max_size, cls.id, split, source)
        pool = cls(found, [weight for _, weight in kept], dialogue_format)
        pool.notes, pool.copies = notes, copies.report
        return pool


def _check_columns(columns: Columns, template: Template | None, dialogue_format: DialogueFormat | None) -> None:
    if dialogue_format is not None and "history" in columns["meta_data"]:
        raise DataError("columns.meta_data: 'history' is reserved for the prompt's utterances; rename the column")
    if columns["dialogue"] is not None and template is not None:
        raise DataError("columns.dialogue contains whole prompts; remove prompt_template")
    if columns["system"] is not None and dialogue_format is None:
        raise DataError("columns.system is a message, which needs format: eou or chat_template")


def _dialogues(
    rows: Iterable[Row], columns: Columns, notes: Notes
) -> Iterator[tuple[str | int, list[Message], bool, dict[str, Any], Row]]:
    """Id, messages, whether they have an end, meta data and row of each dialogue."""
    dialogue, own = columns["dialogue"], columns["id"]
    assert dialogue is not None
    for number, row in enumerate(rows):
        if empty := _empty(row, columns, None, blanks=True):
            notes[f"rows without {empty}, left out"] += 1
            continue
        id, meta_data = number if own is None else row[own], {name: row[name] for name in columns["meta_data"]}
        yield id, dialogue_messages(row, dialogue, columns), True, meta_data, row


def columns_of(columns: Columns | None) -> Columns:
    given = columns or {}
    if given.get("dialogue") is not None and (both := [key for key in ("prompt", "references") if key in given]):
        raise DataError(f"columns.dialogue already contains prompts and replies; remove columns.{both[0]}")
    return {**_DEFAULTS, **given}


class HFDataset(_TablePool):
    """Any dataset of the Hugging Face Hub or in a folder, with its column names.

    Args:
        dataset_id: Hub dataset.
        path: A folder from ``save_to_disk``, or one supported by ``datasets.load_dataset``; instead of ``dataset_id``.
        name: Configuration of the dataset.
        revision: Branch, tag or commit on the hub.
        splits: The dataset's split for each split; a hub split can be a part, such as ``"train[:90%]"``. By default
            those of the same names, and ``validation``, ``valid`` or ``dev`` for ``val``.
    """

    id = "hf_dataset"

    @classmethod
    def prepare(
        cls,
        split: str,
        dataset_id: str | None = None,
        path: FilePath | None = None,
        name: str | None = None,
        revision: str | None = None,
        splits: Mapping[str, str] | None = None,
        columns: Columns | None = None,
        prompt_template: str | None = None,
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        max_size: Count | None = None,
        format: FormatName | None = None,
        context_size: Count | None = None,
        split_by: str | None = None,
        learn: Learned = "agent",
        goal: str | None = None,
        render_chat: RenderChat | None = None,
    ) -> HFDataset:
        dialogue_format = _format(format, context_size, render_chat)
        chosen = columns_of(columns)
        numbers = {chosen["id"] or "", chosen["weight"] or "", *chosen["meta_data"]}
        where = (split, dataset_id, path, name, revision, splits, held_out_share, split_seed)
        draw = functools.partial(dataset_split, *where, numbers=numbers)
        of_columns = columns, prompt_template, max_size, dialogue_format, split_by, Sides(learn, goal), split_seed
        return cls._of_rows(draw, split, str(path or dataset_id), *of_columns)


class Jsonl(_TablePool):
    """JSON files with one object per line, with the names of its keys.

    Args:
        path: A file per split (``{train: FILE, val: FILE, test: FILE}``), a folder with ``train.jsonl`` and so on, or
            one file. Files with a list of objects or indented objects, ``.gz`` and ``.parquet`` are also supported.
    """

    id = "jsonl"

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath,
        columns: Columns | None = None,
        prompt_template: str | None = None,
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        max_size: Count | None = None,
        format: FormatName | None = None,
        context_size: Count | None = None,
        split_by: str | None = None,
        learn: Learned = "agent",
        goal: str | None = None,
        people: People | None = None,
        render_chat: RenderChat | None = None,
    ) -> Jsonl:
        dialogue_format = _format(format, context_size, render_chat)
        readers = file_readers(path, (".jsonl", ".json", ".parquet"))
        (sides := Sides(learn, goal, people, held_out_share is not None)).check(readers)
        draw = functools.partial(split_reader, split, readers, str(path), held_out_share, split_seed)
        of_columns = columns, prompt_template, max_size, dialogue_format, split_by, sides, split_seed
        return cls._of_rows(draw, split, str(path), *of_columns)


class Csv(_TablePool):
    """CSV or TSV files whose first line contains the column names.

    Args:
        path: A file per split (``{train: FILE, val: FILE, test: FILE}``), a folder of them, or one; also ``.gz``.
        delimiter: Column delimiter; by default the comma, semicolon, tab or bar that divides most lines as the first
            one, or ``sep=;`` before.
        encoding: Encoding of the files; by default UTF-8, UTF-16 or ``cp1252``, whichever they are in.
    """

    id = "csv"

    @classmethod
    def prepare(
        cls,
        split: str,
        path: SplitPath,
        columns: Columns | None = None,
        prompt_template: str | None = None,
        delimiter: str | None = None,
        encoding: str | None = None,
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        max_size: Count | None = None,
        format: FormatName | None = None,
        context_size: Count | None = None,
        split_by: str | None = None,
        learn: Learned = "agent",
        goal: str | None = None,
        people: People | None = None,
        render_chat: RenderChat | None = None,
    ) -> Csv:
        dialogue_format = _format(format, context_size, render_chat)
        readers = file_readers(path, (".csv", ".tsv"), (delimiter, encoding))
        (sides := Sides(learn, goal, people, held_out_share is not None)).check(readers)
        draw = functools.partial(split_reader, split, readers, str(path), held_out_share, split_seed)
        of_columns = columns, prompt_template, max_size, dialogue_format, split_by, sides, split_seed
        return cls._of_rows(draw, split, str(path), *of_columns)


def dataset_split(
    split: str,
    dataset_id: str | None,
    path: FilePath | None,
    name: str | None,
    revision: str | None,
    splits: Mapping[str, str] | None,
    held_out_share: float | None,
    split_seed: int,
    copies: Copies | None = None,
    numbers: Collection[str] | None = None,
) -> Callable[[], Iterable[Row]]:
    """Return what reads the rows of one split of a hub dataset or of a dataset in a folder.

    See `HFDataset`, and for ``numbers`` :func:`~rl4dialog.data.splits.load_hub_dataset`.
    """
    check_split(split)
    if (dataset_id is None) == (path is None):
        raise DataError("pass either dataset_id (a hub dataset) or path (a folder)")
    own = dict(splits or {})
    if unknown := [key for key in own if key not in SPLITS]:
        raise DataError(f"splits has no key {unknown[0]!r} (keys: {', '.join(SPLITS)})")
    chosen = own.get(split)
    if path is not None:
        folder = expand_path(path)
        source, dataset = f"dataset {folder}", load_saved_dataset(folder, numbers)
        if chosen is not None:
            parts = dataset if isinstance(dataset, dict) else {}
            if chosen not in parts:
                raise DataError(f"{source} has no split {chosen!r} (it has: {', '.join(parts) or 'none'})")
            dataset = parts[chosen]
    else:
        source, hint = f"hub dataset {dataset_id!r}", "Without a network, set 'path:' to a folder."
        dataset = load_hub_dataset(str(dataset_id), hint, chosen, name, revision, numbers)
    if chosen is not None:
        rows = dataset_rows(dataset, f"{source}, split {chosen}")
        return lambda: report_unread(rows if copies is None else copies.whole(rows), split)
    readers = dataset_readers(dataset, source)
    return split_reader(split, readers, source, held_out_share, split_seed, _HUB_HINT, copies=copies)


def _format(name: FormatName | None, context_size: int | None, render_chat: RenderChat | None) -> DialogueFormat | None:
    if name is None:
        if context_size is not None:
            raise DataError("context_size counts utterances, which need format: eou or chat_template")
        return None
    return DialogueFormat(name, context_size, render_chat)


class Example(NamedTuple):
    """A sample before its prompt is written."""

    messages: list[Message]
    text: str  # all that the prompt says
    references: list[str]
    system: str | None
    number: int | None = None  # of the reply in its dialogue


def examples_of(
    rows: Iterable[Row],
    columns: Columns,
    template: Template | None,
    dialogue_format: DialogueFormat | None,
    notes: Notes,
    is_csv: bool,
) -> Iterator[tuple[int, Row, Example]]:
    """Number, row and example of each sample. Rows that lack something are counted in the notes."""
    without_reply, index = list[NoReply](), 0
    for index, row in enumerate(rows):
        if empty := _empty(row, columns, template, is_csv):
            notes[f"rows without {empty}, left out"] += 1
            continue
        try:
            for each in _examples(row, columns, template, dialogue_format, notes):
                yield index, row, each
        except NoReply as error:
            without_reply.append(error)
    if len(without_reply) == index + 1:
        raise without_reply[0]
    notes["dialogues without a reply of the agent, left out"] += len(without_reply)


def _examples(
    row: Row, columns: Columns, template: Template | None, dialogue_format: DialogueFormat | None, notes: Notes
) -> Iterator[Example]:
    def example(messages: list[Message], references: list[str], number: int | None = None) -> Example:
        if dialogue_format is None:
            return Example(messages, messages[0]["content"], references, None, number)
        system, begin = _system(row, columns["system"], messages), n_instructions(messages)
        texts = [each["content"] for each in (*messages[:begin], *dialogue_format.context(messages[begin:]))]
        return Example(messages, "\n".join([system or "", *texts]), references, system, number)

    if (dialogue := columns["dialogue"]) is not None:
        _needed(dialogue_format, row, dialogue)
        for number, messages, reply in dialogue_replies(row, dialogue, columns, notes):
            yield example(messages, [reply], number)
        return
    column = columns["prompt"]
    if template is None and isinstance(row[column], list):
        _needed(dialogue_format, row, column)
        messages = prompt_messages(row, column, columns)
    else:
        if template is not None:
            text = "".join(before + (row.text(name) if name else "") for before, name in template)
        else:
            text = row.text(column)
        messages = [{"role": "user", "content": text}]
        if given := [name for name in _OF_UTTERANCES if columns.get(name) is not None]:
            raise row.error(f"the prompt is a text and not a dialogue; remove columns.{given[0]}")
    yield example(messages, [""] if columns["references"] is None else row.texts(columns["references"]))


def _empty(row: Row, columns: Columns, template: Template | None, blanks: bool) -> str:
    """What an incomplete row lacks. In CSV files, that is a blank; elsewhere it is ``null``."""

    def lacks(name: str) -> bool:
        return is_blank(row[name]) and (blanks or not isinstance(row[name], str))

    if (dialogue := columns["dialogue"]) is not None:
        first = dialogue if isinstance(dialogue, str) else dialogue[0]
        return f"a dialogue in {first!r}" if lacks(first) else ""
    names = [columns["prompt"]] if template is None else [name for _, name in template if name]
    if all(map(lacks, names)):
        return f"a prompt in {' or '.join(map(repr, names))}"
    replies = columns["references"]
    return f"a reply in {replies!r}" if replies is not None and lacks(replies) else ""


def whole_dialogues(rows: Iterable[Row], columns: Columns, anywhere: Sequence[str] = ()) -> Iterator[Row]:
    """One row for each dialogue of rows with one utterance each, in the place of their texts.

    Successive utterances of one speaker are joined, and empty ones left out. Other columns are those of the first row;
    some can be `anywhere`, in the first row that has them.
    """
    own, text, speaker, order = (columns[name] for name in ("conversation", "text", "speaker", "order"))
    if own is None or text is None:
        raise DataError("columns.conversation needs columns.text, the column with the utterances")
    dialogues: dict[str, list[Row]] = {}
    for row in rows:
        if not is_blank(row[own]):
            dialogues.setdefault(row.text(own), []).append(row)
    for of_dialogue in dialogues.values():
        if order is not None:
            of_dialogue = in_order(of_dialogue, order) or of_dialogue
        said = list[dict[str, Any]]()
        for row in of_dialogue:
            if is_blank(row[text]):
                continue
            if speaker is not None and said and said[-1][speaker] == row[speaker]:
                said[-1][text] += f"\n{row.text(text)}"
            else:
                said.append({text: row.text(text), **({} if speaker is None else {speaker: row[speaker]})})
        found = {name: next((r[name] for r in of_dialogue if not is_blank(r.get(name))), None) for name in anywhere}
        first = Row({**of_dialogue[0].values, **found, text: said}, of_dialogue[0].place)
        for name in (own, speaker, order):
            first.unread.pop(name or "", None)
        yield first


def in_order(rows: Sequence[Row], column: str) -> list[Row] | None:
    """Rows by a column of numbers, or of times in ISO format; ``None`` if it has others."""
    for kind in (float, lambda value: value if isinstance(value, datetime) else datetime.fromisoformat(str(value))):
        with contextlib.suppress(ValueError, TypeError, DataError):
            return sorted(rows, key=lambda row: kind(row[column]))
    return None


def _system(row: Row, column: str | None, messages: Sequence[Message]) -> str | None:
    """The system message of a column, unless the messages begin with the same one."""
    if column is None or is_empty(row[column]):
        return None
    text, begin = row.text(column), messages[: n_instructions(messages)]
    if begin and [text.strip()] != [message["content"].strip() for message in begin]:
        given = shown(begin[0]["content"])
        raise row.error(
            f"column {column!r} has the system message {shown(text)}, and the dialogue has {given}; keep one"
        )
    return None if begin else text


def _needed(dialogue_format: DialogueFormat | None, row: Row, column: str | Sequence[str]) -> None:
    if dialogue_format is None:
        raise row.error(f"column {column!r} contains a dialogue; set datapool.args.format to eou or chat_template")


def _weight(row: Row, column: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (weight := float(row.text(column))) < math.inf:
            return weight
    raise row.error(f"column {column!r} must contain a positive weight, not {row[column]!r}")


def _parts(template: str) -> Template:
    """Texts of a template, and the columns after them. Unlike in ``str.format``, values have no attributes."""
    try:
        parts = list(string.Formatter().parse(template))
    except (ValueError, TypeError) as error:
        raise DataError(f"prompt_template {template!r} is malformed: {error}") from error
    columns = [column for _, column, _, _ in parts if column is not None]
    if not all(columns) or not columns or any(spec or conversion for _, _, spec, conversion in parts):
        raise DataError(
            f"prompt_template must have a column name in braces, such as '{{prompt}}', and nothing else in them, "
            f"not {template!r}"
        )
    return [(text, column) for text, column, _, _ in parts]
