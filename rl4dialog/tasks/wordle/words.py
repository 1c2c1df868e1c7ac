"""Lists of words: two packaged ones, and files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

from rl4dialog.core.errors import DataError, shown
from rl4dialog.data.text_files import decode_lines, read_lines
from rl4dialog.tasks.wordle.rules import N_LETTERS, read

ListName = Literal[40, 240]
"""The packaged lists, by their number of words; all words are common, and the short list is part of the long one."""


def load_words(word_list: ListName | None = None, path: str | None = None) -> tuple[str, ...]:
    """Load a list of words.

    Args:
        word_list: A packaged list.
        path: A text file with one word per line, instead.

    Returns:
        The words in the order of the list.
    """
    if word_list is not None and path is None:
        return _packaged(word_list)
    if path is not None and word_list is None:
        return _from_file(path)
    raise DataError(
        f"a list of words is either word_list, which is 40 or 240, or the path of a file with one word per line; "
        f"{'neither' if path is None else 'both'} of them is given"
    )


def _packaged(word_list: int) -> tuple[str, ...]:
    name = f"words_{word_list}.txt"
    return _checked(decode_lines((resources.files(__package__) / name).read_bytes(), name), name)


def _from_file(path: str) -> tuple[str, ...]:
    return _checked(read_lines(Path(path).expanduser()), path)


def _checked(lines: list[str], file: str) -> tuple[str, ...]:
    first_line: dict[str, int] = {}
    for number, word in enumerate(lines, start=1):
        if read(word, "plain") != word:
            raise DataError(
                f"{file}:{number}: {shown(word)} is not a word of the game; a line must be {N_LETTERS} lower-case "
                f"letters a to z"
            )
        if word in first_line:
            raise DataError(f"{file}:{number}: {word!r} is also in line {first_line[word]}; remove one of them")
        first_line[word] = number
    if not first_line:
        raise DataError(f"{file}: there are no words; write one word of {N_LETTERS} letters on each line")
    if len(first_line) == 1:
        raise DataError(f"{file}: there is only one word, so nothing has to be guessed; add others")
    return tuple(first_line)
