from types import SimpleNamespace

import pytest
from run_files import write_json
from runs import make_config
from tiny import make_tokenizer

from rl4dialog.core.config import parse_config
from rl4dialog.core.files import write_manifest
from rl4dialog.inference import loading


def test_model_of_a_run_that_went_on_is_told_from_its_newest(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(loading, "LoadedPolicy", lambda *args: args)
    run, config = tmp_path / "run", parse_config(make_config(tmp_path), "test")
    checkpoint = run / "checkpoints" / "iteration_000003"
    for folder in (run, checkpoint):
        (folder / "model").mkdir(parents=True)
    write_json(checkpoint / "state.json", {"iteration": 3})
    write_manifest(checkpoint)
    assert loading.load_run(config, run, "last") == (config, checkpoint / "model", run, checkpoint)
    assert caplog.text == ""
    assert loading.load_run(config, run) == (config, run / "model", run, None)
    assert f"the run in {run} is not complete" in caplog.text and "--checkpoint last" in caplog.text
    caplog.clear()
    write_json(run / "result.json", {"iterations": 3})
    loading.load_run(config, run)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        ({}, "a<EOU>b<EOU>c <EOU>"),
        ({"datapool__args__samples": "dialogues"}, "a <EOU>b<EOU>c <EOU>"),
        ({"datapool": {"id": "conversational", "args": {"turns": "first", "format": "eou"}}}, "a <EOU>b<EOU>c <EOU>"),
    ],
)
def test_chat_has_the_markup_in_which_the_model_learned_dialogues(tmp_path, settings, prompt):
    config = parse_config(make_config(tmp_path, **settings), "test")
    loaded = SimpleNamespace(config=config, tokenizer=make_tokenizer(), run=None)
    dialogue_format = loading.LoadedPolicy.dialogue_format.fget(loaded)
    assert dialogue_format.prompt(["a", "b", "c"]) == prompt
