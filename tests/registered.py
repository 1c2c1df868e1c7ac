"""What a test registers or imports is gone after it, so that the next may use the same names."""

import sys

import pytest
from pages import EXAMPLES

from rl4dialog import catalog


@pytest.fixture(autouse=True)
def nothing_stays_registered():
    registries = [value for value in vars(catalog).values() if isinstance(value, catalog.Registry)]
    before = [dict(registry._entries) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry._entries = entries
    examples = [path.stem for path in EXAMPLES.glob("*.py")]
    for name in ("mine", "my_parts", *examples):
        sys.modules.pop(name, None)
