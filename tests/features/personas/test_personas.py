"""The page about personas, the example on it, and personas in logs of conversations."""

import runpy
import shlex
from pathlib import Path

from pages import EXAMPLES, ROOT, blocks, commands_of
from runs import SMALL, lines

from rl4dialog import cli
from rl4dialog.catalog import DataPoolRegistry, MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.yaml_loader import parse_yaml
from rl4dialog.data.conversations.pool import LoggedConversations

SMALLER = {"datapool.args.max_size": 40, "env.n_envs": 4, **SMALL}


def test_persona_is_spoken_of(tmp_path, monkeypatch):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    module = runpy.run_path(str(EXAMPLES / "persona.py"))
    module["write_dialogues"]("runs/persona_data", n_dialogues=20)
    (command,) = [line for line in commands_of("docs/personas.md") if "persona.yml" in line]
    assert cli.main([*shlex.split(command)[1:], *(t for k, v in SMALLER.items() for t in ("--set", f"{k}={v}"))]) == 0
    assert len(lines(Path("rl4dialog_exps", "persona", "rollout_info.jsonl"))) == 1
    persona = {"persona": ["i love chess.", "i have a parrot."]}
    assert module["speaks_of_persona"]("", "i love my parrot", [], persona) == 1.0
    assert module["speaks_of_persona"]("", "parrot food", [], persona) == 0.5


def test_personas_of_simulated_conversations_are_read_back(tmp_path):
    config, output = str(ROOT / "task_configs/get_acquainted/llama_frozen_copy_ppo.yml"), tmp_path / "talks.jsonl"
    few = ("datapool.args.n_train=50", "env.args.partner={id: facts}", "tokenizer.vocab_size=400")
    flags = ("--config_path", config, "--n", "3", "--player", "curious", "--output", str(output), "--set", *few)
    assert cli.main(["simulate", *flags]) == 0
    pool = LoggedConversations.prepare("train", output)
    for record, conversation, (sample, _) in zip(lines(output), pool.conversations(), pool, strict=True):
        personas = {key: record["meta_data"][key] for key in ("persona", "partner_persona")}
        assert all(len(facts) == 5 for facts in personas.values()) and personas["persona"] != [*personas.values()][1]
        assert conversation.meta_data.items() >= personas.items() <= sample.meta_data.items()
        assert sample.prompt_or_input_text.startswith(" ".join(personas["persona"]) + "<EOU>")


def test_personas_by_example_are_valid():
    found = [parse_yaml(block, "personas.md") for block in blocks("docs/personas.md", "yaml")]
    pool, evaluation, supervised, reward, *_ = found
    DataPoolRegistry.check(pool["datapool"]["id"], pool["datapool"]["args"])
    (metric,) = evaluation["train_evaluation"]["metrics"]
    for registry, chosen in ((MetricRegistry, metric), (RewardFunctionRegistry, reward["reward_fn"])):
        registry.check(chosen["id"], chosen["args"])
    assert supervised["alg"]["id"] == "supervised"
