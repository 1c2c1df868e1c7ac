"""Reads personas from the files of convogym, ConvAI2 and Synthetic-Persona-Chat.

=============================== =================================================================================
file                            content
=============================== =================================================================================
convogym's CSV                  a persona per row, in the columns ``Fact 1``, ``Fact 2``, ...; empty cells are skipped
ConvAI2's text                  the lines ``your persona:`` and ``partner's persona:`` of each dialogue
Synthetic-Persona-Chat's CSV    a pair per row, in the columns ``user 1 personas`` and ``user 2 personas``, one fact
                                per line
=============================== =================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from rl4dialog.core.errors import DataError
from rl4dialog.data.persona_chat import dialogue_ranges, find_file, parse_exchanges
from rl4dialog.data.rows import Row, table_suffix
from rl4dialog.data.splits import SplitPath, file_readers, read_split
from rl4dialog.data.tables import DRAW_HINT
from rl4dialog.data.text_files import expand_path, read_lines

Persona = tuple[str, ...]
_FACT = "fact"
_USERS = ("user 1 personas", "user 2 personas")


class PersonaPair(NamedTuple):
    """The personas of a row or dialogue.

    Attributes:
        first: Sentences about one person.
        second: Those about the other one, if the file has them.
    """

    first: Persona
    second: Persona | None = None


def read_personas(split: str, path: SplitPath, held_out_share: float | None, split_seed: int) -> list[PersonaPair]:
    """Read the personas of one split, in the order of the file.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: A file, a folder, or a mapping from split to file. A text file is used for every split, a CSV file for
            ``train``.
        held_out_share: Share of the rows of ``train`` that is sampled for each of ``val`` and ``test`` that is missing
            among CSV files.
        split_seed: Random seed of this sampling.
    """
    if _is_table(path):
        hint = f"Set a file for each split: path: {{train: FILE, val: FILE, test: FILE}}{DRAW_HINT}"
        rows = read_split(split, file_readers(path, (".csv",)), str(path), held_out_share, split_seed, hint)
        return [_pair_of(row) for row in rows]
    if held_out_share is not None:
        raise DataError(f"{path} has no CSV file, so held_out_share has no effect; remove it")
    return list(_pairs_in_text(str(find_file(split, path, "both"))))


def _is_table(path: SplitPath) -> bool:
    places = [expand_path(file) for file in (path.values() if isinstance(path, Mapping) else [path])]
    files = chain.from_iterable(place.iterdir() if place.is_dir() else [place] for place in places)
    return any(table_suffix(file) == ".csv" for file in files)


def _pair_of(row: Row) -> PersonaPair:
    if set(_USERS) <= row.values.keys():
        first, second = (_facts(row, row.text(column).splitlines(), f"column {column!r}") for column in _USERS)
        return PersonaPair(first, second)
    columns = [name for name in row.values if name.lower().startswith(_FACT)]
    if not columns:
        raise row.error(
            f"unknown columns ({', '.join(row.values)}); expected Fact 1, Fact 2, ... (convogym) or "
            f"{' and '.join(_USERS)} (Synthetic-Persona-Chat)"
        )
    return PersonaPair(_facts(row, (row.text(name) for name in columns), "the row"))


def _facts(row: Row, texts: Iterable[str], what: str) -> Persona:
    facts = tuple(text.strip() for text in texts if text.strip())
    if not facts:
        raise row.error(f"{what} has no facts")
    return facts


def _pairs_in_text(file: str) -> Iterator[PersonaPair]:
    exchanges = parse_exchanges(read_lines(expand_path(file)), file)
    for dialogue in dialogue_ranges(exchanges):
        first = exchanges[dialogue.start]
        if not first.persona:
            raise DataError(f"{first.place}: the dialogue has no 'your persona:' line before this one")
        yield PersonaPair(tuple(first.persona), tuple(first.partner_persona) or None)


def distinct(pairs: Iterable[PersonaPair]) -> list[Persona]:
    """Return all personas once, in order; the same facts in another order are the same persona."""
    found: dict[frozenset[str], Persona] = {}
    for persona in chain.from_iterable(pairs):
        if persona is not None:
            found.setdefault(frozenset(persona), persona)
    return list(found.values())
