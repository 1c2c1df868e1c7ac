"""Lists of words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.wordle.words import load_words


@pytest.mark.parametrize("n", [40, 240])
def test_packaged_lists_have_different_sorted_words(n: int) -> None:
    words = load_words(n)  # type: ignore[arg-type]
    assert len(words) == len(set(words)) == n
    assert list(words) == sorted(words)
    assert all(re.fullmatch("[a-z]{5}", word) for word in words)


def test_short_list_is_part_of_the_long_one_which_has_all_letters() -> None:
    assert set(load_words(40)) < set(load_words(240))
    assert len(set("".join(load_words(240)))) == 26


def test_lists_are_installed_with_the_package() -> None:
    setup = (Path(__file__).parents[4] / "setup.py").read_text(encoding="utf-8")
    assert '"rl4dialog.tasks.wordle": ["*.txt"]' in setup


def test_file_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\r\nabout\nslate")
    assert load_words(path=str(path)) == ("crane", "about", "slate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "crane\nabou\n",
            r"words\.txt:2: 'abou' is not a word of the game; a line must be 5 lower-case letters a to z",
        ),
        ("crane\nabouts\n", r"words\.txt:2: 'abouts'"),
        ("Crane\n", r"words\.txt:1: 'Crane'"),
        ("crane\n\nabout\n", r"words\.txt:2: ''"),
        ("crane \nabout\n", r"words\.txt:1: 'crane '"),
        ("naïve\n", r"words\.txt:1: 'naïve'"),
        ("crane\nabout\ncrane\n", r"words\.txt:3: 'crane' is also in line 1"),
        ("", r"words\.txt: there are no words"),
        ("crane\n", r"words\.txt: there is only one word"),
    ],
)
def test_invalid_file_is_an_error_that_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_words(path=str(path))


def test_missing_file_and_bytes_that_are_no_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no_such\.txt cannot be read: No such file"):
        load_words(path=str(tmp_path / "no_such.txt"))
    path = tmp_path / "words.txt"
    path.write_bytes(b"crane\n\xff\xff\xff\xff\xff\n")
    with pytest.raises(DataError, match=r"words\.txt:2: not valid UTF-8"):
        load_words(path=str(path))


def test_exactly_one_list_is_given() -> None:
    with pytest.raises(DataError, match="neither of them is given"):
        load_words()
    with pytest.raises(DataError, match="both of them is given"):
        load_words(40, "words.txt")
