"""The README's code, configs and commands are what a newcomer types: they work as they stand."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
from runs import make_config, run_folder, train

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import GenerationConfig, parse_config
from rl4dialog.core.yaml_loader import parse_yaml
from rl4dialog.data.tables import Columns
from rl4dialog.training.builders import check_components

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_config_by_example_is_valid() -> None:
    (config,) = [block for block in blocks("yaml") if block.startswith("seed:")]
    check_components(parse_config(parse_yaml(config, "README.md"), "README.md"))


def test_datapool_by_example_is_valid() -> None:
    (block,) = [block for block in blocks("yaml") if block.startswith("datapool:")]
    datapool = parse_yaml(block, "README.md")["datapool"]
    DataPoolRegistry.check(datapool["id"], datapool["args"])
    Columns.parse(datapool["args"]["columns"])


class Judge(BaseHTTPRequestHandler):
    """Grades every reply with 9."""

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"grade": 9 if question.keys() == {"prompt", "reply"} else None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture
def judge_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_judge_by_example_is_asked_in_a_composite_by_example(tmp_path: Path, judge_url: str) -> None:
    parts, judge = blocks("python")
    assert "http://localhost:8000" in judge
    (tmp_path / "my_parts.py").write_text(parts, encoding="utf-8")
    (tmp_path / "mine.py").write_text(judge.replace("http://localhost:8000", judge_url), encoding="utf-8")
    (composite,) = [block for block in blocks("yaml") if "composite" in block]
    reward = parse_yaml(composite, "README.md")["reward_fn"]
    # METEOR without synonyms: WordNet is a download, which this test does without.
    reward["args"]["rewards"][0]["args"] = {"synonyms": False}
    config = make_config(tmp_path, imports=["./my_parts.py", "./mine.py"], reward_fn=reward)
    assert train(tmp_path, config) == 0
    info = json.loads((run_folder(tmp_path) / "rollout_info.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert info["rollout/reward/judge"] == 9.0 and info["rollout/reward/short_reply/weight"] == 0.5
    assert info["rollout/task_reward"] == pytest.approx(
        info["rollout/reward/intent_accuracy"] + 0.5 * info["rollout/reward/short_reply"] + 0.1 * 8, abs=1e-5
    )
    assert info["rollout/masked_rewards"] == 0


def test_generation_by_example_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [block for block in blocks("yaml") if block.startswith("generation:")]
    fake_vllm.install(monkeypatch)
    config = parse_config(make_config(tmp_path, **parse_yaml(block, "README.md")), "README.md")
    check_components(config)
    assert config.generation == GenerationConfig(backend="vllm"), "the other values are the defaults"


def test_parts_of_ones_own_run(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(blocks("python")[0], encoding="utf-8")
    config = make_config(
        tmp_path,
        imports=["./my_parts.py"],
        datapool={"id": "greetings"},
        reward_fn={"id": "short_reply"},
        train_evaluation__metrics=[{"id": "share_of_questions"}],
    )
    assert train(tmp_path, config) == 0
    assert "style/questions" in (run_folder(tmp_path) / "test_split_metrics.jsonl").read_text(encoding="utf-8")


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"(?:task_configs|scripts|tests|docs)/[\w/.]+\.(?:yml|py|png)", README):
        assert (ROOT / name).is_file(), name


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", README)) <= targets


def test_tree_has_a_line_for_every_file() -> None:
    tree = README.split("## The tree", 1)[1].split("```")[1]
    listed = re.findall(r"^ +(\w+\.py) ", tree, flags=re.MULTILINE)
    assert sorted(listed) == sorted(p.name for p in (ROOT / "rl4dialog").rglob("*.py") if not p.name.startswith("_"))
    packages = {path.parent.name for path in (ROOT / "rl4dialog").rglob("*/__init__.py")}
    assert packages == set(re.findall(r"(\w+)/", tree.split("scripts/")[0])) - {"rl4dialog"}
