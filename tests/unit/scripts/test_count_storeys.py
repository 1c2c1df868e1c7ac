"""Lines are counted as a reader would count them."""

from pathlib import Path

import count_storeys


def test_docstrings_comments_imports_and_blank_lines_are_no_code(tmp_path):
    file = tmp_path / "module.py"
    head = '"""About\nit."""\n\nimport os\nfrom a import (\n    b,\n)\n\n# why\n'
    file.write_text(head + 'X = [  # what\n    1,\n]\n\n\ndef f():\n    """It."""\n    return os\n')
    assert count_storeys.counted([file]) == (1, 17, 5)


def test_files_belong_to_the_core_or_to_a_feature():
    package = count_storeys.PACKAGE
    assert count_storeys.of_storey(package / "core" / "files.py") == "core"
    assert count_storeys.of_storey(package / "features" / "__init__.py") == "core"
    assert count_storeys.of_storey(package / "features" / "export" / "gguf.py") == "features/export"


def test_the_core_has_no_import_of_a_feature(tmp_path):
    file = Path(tmp_path) / "module.py"
    file.write_text("from rl4dialog.features.export import gguf\nNAME = 'rl4dialog.features.export'\n")
    assert count_storeys.imports_of_features([file]) == 1
