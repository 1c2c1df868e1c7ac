"""The generated pages say how keys and options are written."""

import re

from reference_pages import command_page, schema_page


def test_page_of_keys_has_type_default_and_bounds():
    page = schema_page()
    assert "| `n_envs` | integer, at least 1, at most 65,536 | `1` | " in page
    assert "| `type` | `fixed`, `adaptive`, `ziegler` | `null` | " in page
    assert re.search(
        r"## env\.args\n.*\| `max_prompt_length` \| integer, at least 1, at most 1,000,000 \|  \| ", page, re.DOTALL
    )
    assert "| `metrics` | list of `{id, args, append_to_texts}` | `[]` | " in page


def test_page_of_commands_has_usage_and_meaning_of_options():
    page = command_page()
    assert "| `--overwrite` | Replace an existing run of the same name |" in page
    assert r"| `--resume [always\|auto]` |" in page and "| `--seeds SEED ...` |" in page
