import json
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from runs import make_config

from rl4dialog.core.config import load_config, parse_config
from rl4dialog.core.errors import HubError, RunFolderError
from rl4dialog.features.export import publishing
from rl4dialog.features.export.publishing import model_card, push_to_hub

RESULT = {"iterations": 2, "test": {"before": {"lexical/meteor": 0.25}, "after": {"lexical/meteor": 0.5, "a/b": None}}}
PROVENANCE = {"versions": {"torch": "9.9"}, "turn_marker": "<EOU>", "git": {"package": {"commit": "c0ffee"}}}


def card(tmp_path, **overrides):
    return model_card("jane/tea", parse_config(make_config(tmp_path, **overrides), "test"), RESULT, PROVENANCE)


def test_card_says_what_the_model_is(tmp_path):
    text = card(tmp_path)
    assert "# tea" in text and "reinforcement learning (ppo)" in text
    assert "| reward | `rouge` |" in text and "| base model | `builtin/tiny-gpt2` |" in text
    assert "| lexical/meteor | 0.250 | 0.500 |" in text and "| a/b | - | - |" in text
    assert 'AutoModelForCausalLM.from_pretrained("jane/tea")' in text
    assert "utterance of a prompt ends with `<EOU>`" in text
    assert "torch 9.9" in text and "c0ffee" in text
    data = ModelCard(text).data
    assert data.library_name == "transformers" and data.pipeline_tag == "text-generation" and "ppo" in data.tags
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("lexical/meteor", 0.5, "test")
    assert data.base_model is None


def test_base_model_and_dataset_of_the_hub_are_linked(tmp_path):
    text = card(
        tmp_path,
        alg__policy__args__model_name="openai-community/gpt2",
        datapool={"id": "daily_dialog", "args": {"dataset_id": "li2017dailydialog/daily_dialog"}},
    )
    data = ModelCard(text).data
    assert data.base_model == "openai-community/gpt2" and data.datasets == ["li2017dailydialog/daily_dialog"]


def test_card_tells_nothing_of_this_machine_and_its_config_is_one(tmp_path):
    text = card(tmp_path, alg__policy__args__model_name=str(tmp_path / "my_model"))
    assert str(tmp_path) not in text and ".../my_model" in text
    config = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert parse_config(config, "card").alg.id == "ppo"


def test_supervised_model_has_no_reward(tmp_path):
    alg = {"id": "supervised", "model_type": "seq2seq", "model_name": "builtin/tiny-t5", "training_args": {}}
    text = card(tmp_path, alg=alg)
    assert "fine-tuned on the references" in text and "| reward" not in text
    assert "AutoModelForSeq2SeqLM" in text and ModelCard(text).data.pipeline_tag == "text2text-generation"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(make_config(tmp_path)))
    (folder / "result.json").write_text(json.dumps(RESULT))
    (folder / "model" / "model.safetensors").write_bytes(b"x" * 3000)
    return folder


class StandInApi:
    calls: list[tuple[str, dict[str, Any]]]
    error: Exception | None = None

    def create_repo(self, repo_id, **kwargs):
        if self.error is not None:
            raise self.error
        self.calls.append(("create_repo", {"repo_id": repo_id, **kwargs}))
        return f"https://hub/{repo_id}"

    def upload_folder(self, **kwargs):
        self.calls.append(("upload_folder", kwargs))


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(StandInApi, "calls", [], raising=False)
    monkeypatch.setattr(publishing, "HfApi", StandInApi)
    monkeypatch.setattr(publishing, "get_token", lambda: "made up")
    return StandInApi


def test_model_folder_is_uploaded_with_its_card(run, api, capsys):
    push_to_hub(run, "jane/tea", private=True)
    create, upload = api.calls
    assert create == ("create_repo", {"repo_id": "jane/tea", "private": True, "exist_ok": True})
    assert upload[0] == "upload_folder"
    assert upload[1]["folder_path"] == run / "model" and upload[1]["repo_id"] == "jane/tea"
    expected = model_card("jane/tea", load_config(run / "config.json"), RESULT, {})
    assert (run / "model" / "README.md").read_text(encoding="utf-8") == expected
    assert "Published: https://hub/jane/tea" in capsys.readouterr().out


def test_dry_run_writes_the_card_and_uploads_nothing(run, api, capsys):
    push_to_hub(run, "jane/tea", dry_run=True)
    output = capsys.readouterr().out
    assert "3 KiB  model.safetensors" in output and "README.md" in output and "nothing was uploaded" in output
    assert not api.calls and (run / "model" / "README.md").is_file()


def test_what_prevents_publishing_is_told(run, api, monkeypatch):
    for name in ("tea", "a b/c", "a/b/c"):
        with pytest.raises(HubError, match="--repo_id"):
            push_to_hub(run, name)
    with monkeypatch.context() as patch:
        patch.setattr(StandInApi, "error", ConnectionError("no\nroute"))
        with pytest.raises(HubError, match="cannot be reached, so 'jane/tea' was not published: no route"):
            push_to_hub(run, "jane/tea")
    monkeypatch.setattr(publishing, "get_token", lambda: None)
    with pytest.raises(HubError, match=r"not logged in .* hf auth login"):
        push_to_hub(run, "jane/tea")
    assert not api.calls
    (run / "result.json").unlink()
    with pytest.raises(RunFolderError, match="is not complete"):
        push_to_hub(run, "jane/tea", dry_run=True)
