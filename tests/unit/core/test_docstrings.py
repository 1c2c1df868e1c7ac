"""What docstrings say of arguments."""

from __future__ import annotations

from rl4dialog.core.docstrings import argument_meanings, summary


class Parent:
    """A parent.

    Args:
        one: The parent's word.
        two: Of ``two`` lines, with :class:`~a.b.Thing`
            in them.
    """


class Child(Parent):
    """A child of ``Parent``.

    Args:
        one: The child's word: it counts.

    Raises:
        ValueError: Never.
    """


class Grandchild(Child):
    pass


def test_classes_say_what_their_parents_do_not() -> None:
    assert argument_meanings(Grandchild) == {
        "one": "The child's word: it counts.",
        "two": "Of `two` lines, with `Thing` in them.",
    }
    assert summary(Child) == "A child of `Parent`."


def test_what_has_no_docstring_says_nothing() -> None:
    assert argument_meanings(lambda: 0) == {} and summary(lambda: 0) == ""
