"""Any dataset with prompts and references in columns: from the hub, JSON lines or CSV, with column names in YAML.

A prompt is a text, or a dialogue formatted by a `DialogueFormat`; a column can also contain whole dialogues.
"""

from __future__ import annotations

import contextlib
import math
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import ConfigDict
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, Message, RenderChat, n_instructions
from rl4dialog.data.messages import Notes, dialogue_replies, log_notes, prompt_messages, render_messages
from rl4dialog.data.pool import SPLITS, TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import UTF_8, FilePath, Row, expand_path, is_empty, report_unread
from rl4dialog.data.splits import (
    DRAW_HINT,
    HeldOutShare,
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
    dialogue: str | None
    # Key of an utterance's speaker; by default ``role``, ``speaker``, ``from``, ``author``, ``sender`` or ``name``.
    speaker: str | None
    # Key of an utterance's text; by default ``content``, ``text``, ``utterance``, ``value`` or ``message``.
    text: str | None
    # The speaker whose role the model takes; by default ``assistant``, ``agent``, ``bot``, ``gpt``, ``chatgpt`` or
    # ``model``, or ``system`` who takes turns with another speaker, or else the only one who is not ``user``, ``usr``,
    # ``human``, ``customer`` or ``prompter``.
    agent: str | None


_OF_UTTERANCES = ("speaker", "text", "agent")
_DEFAULTS: Columns = {
    **dict.fromkeys(("system", "id", "weight", "dialogue", *_OF_UTTERANCES)),  # type: ignore[typeddict-item]
    "prompt": "prompt",
    "references": "reference",
    "meta_data": [],
}


class _TablePool(TextGenPool):
    r"""Samples from rows, with the names of their columns.

    Args:
        columns: Names of the columns; see `Columns`.
        prompt_template: Template of the prompt, with columns in braces, such as ``"Question: {question}\nAnswer:"``.
            Double braces stand for braces.
        format: Format of dialogues: ``eou`` or ``chat_template``. A text prompt is then a single user message. Without
            a format, prompts are texts, used verbatim.
        context_size: Maximum number of utterances in a prompt, without the system message; ``None`` for all.
    """

    id: ClassVar[str]

    @classmethod
    def _of_rows(
        cls,
        rows: Iterable[Row],
        split: str,
        source: str,
        columns: Columns | None,
        prompt_template: str | None,
        max_size: int | None,
        dialogue_format: DialogueFormat | None,
    ) -> Self:
        chosen, template = _chosen(columns), None if prompt_template is None else _parts(prompt_template)
        if dialogue_format is not None and "history" in chosen["meta_data"]:
            raise DataError("columns.meta_data: 'history' is reserved for the prompt's utterances; rename the column")
        if chosen["dialogue"] is not None and template is not None:
            raise DataError("columns.dialogue contains whole prompts; remove prompt_template")
        if chosen["system"] is not None and dialogue_format is None:
            raise DataError("columns.system is a message, which needs format: eou or chat_template")
        weights: list[float] = []
        notes = Notes()
        places: dict[str, str] = {}

        def samples() -> Iterable[Sample]:
            own = chosen["id"]
            for index, row in enumerate(rows):
                id = index if own is None else row[own]
                if own is not None and (first := places.setdefault(row.text(own), row.place)) != row.place:
                    raise row.error(f"column {own!r} has the same id, {shown(id)}, as {first}")
                weight = 1.0 if chosen["weight"] is None else _weight(row, chosen["weight"])
                for sample in _samples(id, row, chosen, template, dialogue_format, notes):
                    weights.append(weight)
                    yield sample

        kept = limit_samples(samples(), max_size, cls.id, split, source)
        log_notes(notes, f"{source}, {split}")
        return cls(kept, weights[: len(kept)], dialogue_format)


def _chosen(columns: Columns | None) -> Columns:
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
        render_chat: RenderChat | None = None,
    ) -> HFDataset:
        dialogue_format = _format(format, context_size, render_chat)
        chosen = _chosen(columns)
        numbers = {chosen["id"] or "", chosen["weight"] or "", *chosen["meta_data"]}
        rows = dataset_split(split, dataset_id, path, name, revision, splits, held_out_share, split_seed, numbers)
        source = str(path or dataset_id)
        return cls._of_rows(rows, split, source, columns, prompt_template, max_size, dialogue_format)


class Jsonl(_TablePool):
    """JSON files with one object per line, with the names of its keys.

    Args:
        path: A file per split (``{train: FILE, val: FILE, test: FILE}``), a folder with ``train.jsonl`` and so on, or
            one file. Files with a list of objects or indented objects and ``.gz`` files are also supported.
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
        render_chat: RenderChat | None = None,
    ) -> Jsonl:
        dialogue_format = _format(format, context_size, render_chat)
        readers = file_readers(path, (".jsonl", ".json"))
        rows = split_reader(split, readers, str(path), held_out_share, split_seed)()
        return cls._of_rows(rows, split, str(path), columns, prompt_template, max_size, dialogue_format)


class Csv(_TablePool):
    """CSV or TSV files whose first line contains the column names.

    Args:
        path: A file per split (``{train: FILE, val: FILE, test: FILE}``), a folder of them, or one; also ``.gz``.
        delimiter: Column delimiter; by default the comma, semicolon, tab or bar of the first line, or ``sep=;`` before.
        encoding: Encoding of the files, such as ``cp1252``. UTF-16 is recognized.
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
        encoding: str = UTF_8,
        held_out_share: HeldOutShare | None = None,
        split_seed: int = 0,
        max_size: Count | None = None,
        format: FormatName | None = None,
        context_size: Count | None = None,
        render_chat: RenderChat | None = None,
    ) -> Csv:
        dialogue_format = _format(format, context_size, render_chat)
        readers = file_readers(path, (".csv", ".tsv"), (delimiter, encoding))
        rows = split_reader(split, readers, str(path), held_out_share, split_seed)()
        return cls._of_rows(rows, split, str(path), columns, prompt_template, max_size, dialogue_format)


def dataset_split(
    split: str,
    dataset_id: str | None,
    path: FilePath | None,
    name: str | None,
    revision: str | None,
    splits: Mapping[str, str] | None,
    held_out_share: float | None,
    split_seed: int,
    numbers: Collection[str] | None = None,
) -> Iterable[Row]:
    """Return the rows of one split of a hub dataset or of a dataset in a folder.

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
        return report_unread(dataset_rows(dataset, f"{source}, split {chosen}"), split)
    return split_reader(split, dataset_readers(dataset, source), source, held_out_share, split_seed, _HUB_HINT)()


def _format(name: FormatName | None, context_size: int | None, render_chat: RenderChat | None) -> DialogueFormat | None:
    if name is None:
        if context_size is not None:
            raise DataError("context_size counts utterances, which need format: eou or chat_template")
        return None
    return DialogueFormat(name, context_size, render_chat)


def _samples(
    id: Any,
    row: Row,
    columns: Columns,
    template: list[tuple[str, str | None]] | None,
    dialogue_format: DialogueFormat | None,
    notes: Notes,
) -> Iterator[Sample]:
    meta_data = {name: row[name] for name in columns["meta_data"]}
    if (column := columns["dialogue"]) is not None:
        chosen_format = _needed(dialogue_format, row, column)
        for number, messages, reply in dialogue_replies(row, column, columns, notes):
            prompt, history = render_messages(messages, row, chosen_format, _system(row, columns["system"], messages))
            yield Sample(f"{id}_{number}", prompt, [reply], {**meta_data, "history": history})
        return
    text, column = "", columns["prompt"]
    if template is None and isinstance(row[column], list):
        dialogue_format = _needed(dialogue_format, row, column)
        messages = prompt_messages(row, column, columns)
    else:
        if template is not None:
            text = "".join(before + (row.text(name) if name else "") for before, name in template)
        else:
            text = row.text(column)
        messages = [{"role": "user", "content": text}]
        if given := [name for name in _OF_UTTERANCES if columns.get(name) is not None]:
            raise row.error(f"the prompt is a text and not a dialogue; remove columns.{given[0]}")
    references = [""] if columns["references"] is None else row.texts(columns["references"])
    if dialogue_format is not None:
        system = _system(row, columns["system"], messages)
        text, meta_data["history"] = render_messages(messages, row, dialogue_format, system)
    yield Sample(id, text, references, meta_data)


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


def _needed(dialogue_format: DialogueFormat | None, row: Row, column: str) -> DialogueFormat:
    if dialogue_format is None:
        raise row.error(f"column {column!r} contains a dialogue; set datapool.args.format to eou or chat_template")
    return dialogue_format


def _weight(row: Row, column: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (weight := float(row.text(column))) < math.inf:
            return weight
    raise row.error(f"column {column!r} must contain a positive weight, not {row[column]!r}")


def _parts(template: str) -> list[tuple[str, str | None]]:
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
