import inspect

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import Registry, argument_meanings, summary


class Parent:
    def __init__(self, size=1):
        self.size = size


class Component(Parent):
    """Does a thing.

    More words.
    """

    def __init__(self, scale, tokenizer=None, **kwargs):
        super().__init__(**kwargs)
        self.scale, self.tokenizer = scale, tokenizer


@pytest.fixture
def registry():
    registry = Registry("reward function", {"lazy": "collections:OrderedDict", "broken": "no_such_module:X"})
    registry.register("mine")(Component)
    return registry


def test_component_is_built_with_its_arguments_and_a_function_returned_with_them_bound(registry):
    built = registry.get("mine", {"scale": 2.0, "size": 5}, tokenizer="t", device="not asked for")
    assert (built.scale, built.size, built.tokenizer) == (2.0, 5, "t")

    def reward(prompt_text, gen_text, bonus=0.0):
        return len(gen_text) + bonus

    registry.add("function", reward)
    assert registry.get("function") is reward
    assert registry.get("function", {"bonus": 2.0})("p", "abc") == 5.0


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("mien", {}, r"unknown reward function 'mien'; did you mean 'mine'\? \(known: broken, lazy, mine\)"),
        ("mine", {"scal": 1}, r"'mine' has no argument 'scal'; did you mean 'scale'\?"),
        ("mine", {}, "'mine' needs the argument 'scale'"),
        ("broken", {}, "'broken' cannot be imported"),
    ],
)
def test_mistakes_are_named(registry, id, args, message):
    with pytest.raises(ConfigError, match=message):
        registry.check(id, args)


@pytest.mark.parametrize("register", [lambda r, c: r.register("new")(c), lambda r, c: r.register("new", c)])
def test_component_is_registered_as_a_decorator_or_at_once(registry, register):
    assert register(registry, Component) is Component
    assert isinstance(registry.get("new", {"scale": 1.0}), Component)


def test_description_is_the_first_line_and_the_arguments(registry):
    summary, arguments = registry.describe("mine")
    assert summary == "Does a thing."
    assert "scale" in arguments and "size=1" in arguments


@pytest.mark.parametrize("component", [3, "no colon"])
def test_what_cannot_be_built_is_refused(registry, component):
    with pytest.raises(ConfigError, match="must be a class, a function or"):
        registry.add("bad", component)


def test_class_may_declare_its_arguments_itself():
    class Open:
        """Takes what it says it takes."""

        __signature__ = inspect.Signature([inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default=2)])

        def __init__(self, **kwargs):
            self.kwargs = kwargs

    registry = Registry("part", {})
    registry.add("open", Open)
    assert registry.get("open", {"scale": 3}).kwargs == {"scale": 3}
    assert registry.describe("open") == ("Takes what it says it takes.", "scale=2")
    with pytest.raises(ConfigError, match="no argument 'scael'; did you mean 'scale'"):
        registry.check("open", {"scael": 3})


def test_function_that_gets_everything_from_the_config_needs_its_arguments():
    def world(path, min_count=1):
        """A world.

        Args:
            path: Its files.
        """

    registry = Registry("task", {}, needs_all=True)
    registry.add("mine", world)
    registry.check("mine", {"path": "x"})
    with pytest.raises(ConfigError, match=r"task\.args\.path: task 'mine' needs the argument 'path'"):
        registry.check("mine", {}, "task.args")
    assert registry.arguments("mine") == {"path": "Its files.", "min_count=1": ""}


class DocumentedParent:
    """A parent.

    Args:
        one: The parent's word.
        two: Of ``two`` lines, with :class:`~a.b.Thing`
            in them.
    """


class Child(DocumentedParent):
    """A child of ``DocumentedParent``.

    Args:
        one: The child's word: it counts.

    Raises:
        ValueError: Never.
    """


class Grandchild(Child):
    pass


def test_classes_say_what_their_parents_do_not():
    assert argument_meanings(Grandchild) == {
        "one": "The child's word: it counts.",
        "two": "Of `two` lines, with `Thing` in them.",
    }
    assert summary(Child) == "A child of `DocumentedParent`."
