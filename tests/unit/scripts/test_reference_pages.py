"""The generated pages say how keys and options are written; generated parts of pages replace what is stale."""

import re

import pytest
from page_parts import filled
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


@pytest.mark.parametrize("stale", ["", "stale = 1\n"])
def test_code_is_that_of_the_lines_that_are_named(stale, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"<!-- from examples/my_reward.py:7:7 -->\n\n```python\n{stale}```\n\nText.\n", encoding="utf-8")
    shown = filled(page)
    assert "```python\ndef about_six_words(" in shown and "stale" not in shown and shown.endswith("```\n\nText.\n")


def test_api_has_signature_arguments_and_members_of_the_source(tmp_path):
    page = tmp_path / "page.md"
    names = ("core.types.Turn", "envs.text_generation.TextGenEnv", "rollouts.kl_controllers")
    page.write_text("".join(f"<!-- api rl4dialog.{name} -->\nstale\n" for name in names) + "<!-- end -->\n", "utf-8")
    turn, env, module = filled(page).split("<!-- api ")[1:]
    assert "stale" not in turn + env + module
    assert "    speaker: int,\n" in turn and "\n- `text`: The utterance, without markup.\n" in turn
    assert "\nSubclass of `gym.Env`.\n" in env and "\n- `vocab_size`: V, the number of rows" in env
    assert "### `step`\n\n```python\nstep(action: int) -> tuple[" in env and "`_" not in env
    assert "### `AdaptiveKLController`" in module and module.endswith("\n\n<!-- end -->\n")


def test_example_of_a_deleted_feature_stays_as_it_is(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- from examples/gone.py -->\n\n```python\nkept = 1\n```\n", encoding="utf-8")
    assert filled(page) == page.read_text(encoding="utf-8")
