"""Code, configs and commands of the README and of the docs are what a newcomer types: they work as they stand."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
from http_servers import Server, saying
from pages import EXAMPLES, PAGES, ROOT, blocks, commands_of, text_of, yaml_of
from runs import lines, make_config, trained_run

from rl4dialog import cli
from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.types import AGENT
from rl4dialog.core.yaml_loader import load_yaml, parse_yaml
from rl4dialog.tasks.guess_what import NO, NOT_UNDERSTOOD, OPENING, THINGS, YES
from rl4dialog.training.building.components import check_components


def test_config_by_example_is_valid():
    page = "docs/coming_from/openrl.md"
    check_components(parse_config(yaml_of(page, "seed:"), page))


def test_datapools_by_example_are_valid(tmp_path):
    table, talks = (parse_yaml(block, "datapools.md")["datapool"] for block in blocks("docs/datapools.md", "yaml"))
    DataPoolRegistry.check(table["id"], table["args"])
    page = text_of("docs/datapools.md").splitlines()
    (row,) = [json.loads(line.partition("# ")[2]) for line in page if '"talk"' in line]
    (tmp_path / "talks.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    path = {"train": str(tmp_path / "talks.jsonl")}
    args = {**talks["args"], "split": "train", "path": path, "held_out_share": None}
    pool = DataPoolRegistry.get(talks["id"], args)
    assert [(sample.prompt_or_input_text, sample.references) for sample, _ in pool] == [("Hi! <EOU>", ["Hello."])]


def test_conversation_logs_by_example_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (whole,) = blocks("docs/logs.md", "json")
    Path("page.jsonl").write_text(json.dumps(json.loads(whole)) + "\n", encoding="utf-8")
    runpy.run_path(str(EXAMPLES / "write_log.py"))
    datapool = yaml_of("docs/logs.md")["datapool"]
    rewards = {}
    for name in ("page", "games"):
        args = {**datapool["args"], "path": {"train": f"{name}.jsonl"}, "held_out_share": None}
        pool = DataPoolRegistry.get(datapool["id"], {**args, "split": "train"})
        rewards[name] = [[turn.reward for turn in each.turns if turn.speaker == AGENT] for each in pool.conversations()]
    assert rewards == {"page": [[-1.0, 1.0]], "games": [[-1.0, -1.0], [-1.0]]}


def test_grader_by_example_is_asked_in_a_composite_by_example(tmp_path):
    grader = (EXAMPLES / "my_grader.py").read_text(encoding="utf-8")
    assert "http://localhost:8000" in grader
    reward = yaml_of("docs/rewards.md", "reward_fn:\n  id: composite")["reward_fn"]
    # METEOR without synonyms: WordNet is a download, which this test does without.
    reward["args"]["rewards"][0]["args"] = {"synonyms": False}
    config = make_config(tmp_path, imports=[str(EXAMPLES / "my_reward.py"), "./mine.py"], reward_fn=reward)
    with Server(saying(grade=9)) as server:
        url = server.url.removesuffix("/reply")
        (tmp_path / "mine.py").write_text(grader.replace("http://localhost:8000", url), encoding="utf-8")
        info = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")[0]
        assert all(question.keys() == {"prompt", "reply"} for question in server.sent())
    assert info["rollout/reward/grader"] == 9.0 and info["rollout/reward/about_six_words/weight"] == 0.5
    assert info["rollout/task_reward"] == pytest.approx(
        info["rollout/reward/intent_accuracy"] + 0.5 * info["rollout/reward/about_six_words"] + 0.1 * 8, abs=1e-5
    )
    assert info["rollout/masked_rewards"] == 0


def test_conversations_by_example_are_valid(tmp_path, monkeypatch):
    page = "docs/conversations.md"
    game, hosted, ends, reward, evaluation, itself, real = (parse_yaml(block, page) for block in blocks(page, "yaml"))
    game["env"]["args"] |= ends["env"]["args"]
    load_imports(reward.pop("imports"), EXAMPLES)
    shipped = load_yaml(ROOT / "task_configs" / "guess_what" / "llama_ppo.yml")
    shipped["train_evaluation"] |= evaluation["train_evaluation"]
    check_components(parse_config(shipped | game | reward, page))
    check_components(parse_config(make_config(tmp_path) | real, page))
    monkeypatch.setenv("PARTNER_API_KEY", "a key")
    config = make_config(tmp_path, reward_fn={"id": "repetition_penalty"})
    for args in (hosted["env"]["args"], itself["env"]["args"]):
        config["env"]["args"] |= args
        check_components(parse_config(config, page))


def test_things_of_the_game_are_listed():
    (listed,) = re.findall(r"things:\n\n((?:> .*\n)+)", text_of("docs/conversations.md"))
    assert tuple(listed.replace(">", "").replace("\n", " ").replace(" ", "").split(",")) == THINGS
    for line in (OPENING, YES, NO, NOT_UNDERSTOOD):
        assert f"`{line}`" in text_of("docs/conversations.md")


def test_callback_by_example_logs_and_stops(tmp_path):
    of_any_reply = (EXAMPLES / "my_callback.py").read_text(encoding="utf-8").replace('endswith("?")', 'endswith("")')
    (tmp_path / "my_callback.py").write_text(of_any_reply, encoding="utf-8")
    chosen = yaml_of("docs/logging.md")
    chosen["logging"]["outputs"].remove("tensorboard")  # which need not be installed
    folder = trained_run(tmp_path, make_config(tmp_path, **chosen))
    (info,) = lines(folder / "rollout_info.jsonl")
    assert info["rollout/questions"] == 1 and 0 <= info["rollout/info/utterance_truncated"] <= 1
    assert info["rollout/info/returns/min"] <= info["rollout/task_reward"] <= info["rollout/info/returns/max"]
    (row,) = lines(folder / "progress.json")[1:]
    assert row["rollout/questions"] == info["rollout/questions"] and "eval/val/reward" in row
    assert "stopped after iteration 1 of 2 by question_watch" in (folder / "log.txt").read_text(encoding="utf-8")
    assert (folder / "best_model" / "model.safetensors").is_file()


def test_console_commands_have_the_arguments_that_are_shown(monkeypatch):
    monkeypatch.setattr(cli, "_run", lambda name, args: 0)
    commands = [line for page in PAGES for line in commands_of(page) if line.startswith("rl4dialog ")]
    assert len(commands) >= 16
    for command in commands:
        arguments = shlex.split(command, comments=True)[1:]
        assert arguments == ["--help"] or cli.main(arguments) == 0


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    text = text_of(page)
    for name in re.findall(r"(?<!/)(?:task_configs|scripts|docs)/[\w/.]+\.(?:yml|py|png|md)", text):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"\btests/\w+/[\w/.]+\.(?:py|json)", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)):
        assert "://" in link or ((ROOT / page).parent / link).is_file(), link


def test_code_that_is_shown_from_files_is_whole():
    source = re.compile(r"^<!-- from examples/(\w+\.py)(?::(\d+):(\d+))? -->$", re.MULTILINE)
    shown = [found for page in PAGES for found in source.findall(text_of(page))]
    assert {name for name, _, _ in shown} >= {path.name for path in EXAMPLES.glob("my_*.py")}
    for name, first, last in shown:
        code = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
        compile("\n".join(code[int(first) - 1 : int(last)] if first else code), name, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_page_reads_the_same_on_github(page):
    assert not re.search(r"^(--8<--|::: |!!! |\?\?\? |=== )", text_of(page), re.MULTILINE), "only the site knows this"


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", text_of(page), re.MULTILINE)) <= {
            pair for target in targets for pair in ((target, ""), ("", target))
        }


def test_where_things_are_decided():
    section = text_of("docs/architecture.md").split("## Where is it decided?", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| .+ \| `(.+\.py)` \| `(\w+)` \|$", section, flags=re.MULTILINE)
    assert len(rows) >= 20
    for file, name in rows:
        assert re.search(rf"^(def|class) {name}\b|import .*\b{name}\b", text_of(f"rl4dialog/{file}"), re.MULTILINE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/families").glob("*.md")), ids=lambda page: page.stem)
def test_formulas_name_functions_and_tests(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`: \[?`(\w+)`", text)
    assert len(named) >= 10 and len(named) % 2 == 0
    for (file, function), (test_file, test) in zip(named[::2], named[1::2], strict=True):
        assert re.search(rf"^(def|class) {function}\b", text_of(f"rl4dialog/{file}"), re.MULTILINE), function
        assert f"\ndef {test}(" in text_of(f"tests/{test_file}"), test
    of_reference = set(re.findall(r"^#+ `(\w+)`$", text + text_of("docs/api/formulas.md"), re.MULTILINE))
    linked = re.findall(r"\[`(\w+)`\]\((?:\.\./api/formulas\.md)?#(\w+)\)", text)
    assert linked or page.stem not in ("critic", "groups", "logs")
    assert all(name.lower() == anchor and name in of_reference for name, anchor in linked)


def test_logged_numbers_of_the_hyperparameter_page_are_explained_where_logs_are():
    named = set(re.findall(r"`((?:rollout|train)/\w+)`", text_of("docs/hyperparameters.md")))
    # stable-baselines3's own names are not repeated there.
    assert named - {"train/clip_fraction", "train/explained_variance", "rollout/task_reward_std"} <= set(
        re.findall(r"`((?:rollout|train)/\w+)`", text_of("docs/logging.md"))
    )
    assert len(named) > 3
