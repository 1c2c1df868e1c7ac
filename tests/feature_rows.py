"""Rows that features add to tables of tests about all components, from ``tests/features/<name>/rows.py``.

With this module, the helpers beside them can be imported.
"""

import functools
import importlib.util
import sys
from pathlib import Path

FEATURES = Path(__file__).parent / "features"
sys.path.extend(map(str, sorted(FEATURES.glob("*/"))))


@functools.cache
def _modules():
    found = []
    for path in sorted(FEATURES.glob("*/rows.py")):
        spec = importlib.util.spec_from_file_location(f"rows_of_{path.parent.name}", path)
        found.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(found[-1])
    return found


def rows_of_features(table):
    """All rows of a table: dictionaries as one dictionary, and others as one list."""
    tables = [getattr(module, table) for module in _modules() if hasattr(module, table)]
    if all(isinstance(each, dict) for each in tables):
        return {name: row for each in tables for name, row in each.items()}
    return [row for each in tables for row in each]
