"""Talking to policies that values guide: their guidance in a chat, for one reply, and in the details of tokens."""

import io

import pytest
import torch
from guided_runs import walks_config
from runs import lines, module_run, trained_run

import rl4dialog
from rl4dialog import cli
from rl4dialog.core.errors import ModelError
from rl4dialog.features.serving.chat import ChatAgent
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.text.prompts import encode_reply

pytest.importorskip("rl4dialog.features.offline")  # whose policies these are

PROMPT = "from j <EOU>"
SHARED = {"alg__policy__args__critic": "shared", "alg__policy__args__target": "heads"}


run = module_run(lambda folder: walks_config())


@pytest.fixture
def loaded(run):
    return rl4dialog.load_policy(run)


def test_stream_of_a_guided_reply_is_the_generated_one(loaded):
    agent = ChatAgent(loaded, "it")
    for seed in range(3):
        *_, last = agent.stream(PROMPT, seed)
        assert last.text == loaded.chat("from j", seed=seed)


def test_beta_of_one_reply_is_the_beta_of_the_config(run, loaded):
    agent = ChatAgent(loaded, "it")
    config = loaded.config.model_copy(deep=True)
    config.alg.policy.args.guidance["beta"] = 50.0
    other = ChatAgent(LoadedPolicy(config, run / "model"), "it")
    assert (agent.beta, other.beta) == (4.0, 50.0)
    *_, expected = other.stream(PROMPT, 0)
    *_, own = agent.stream(PROMPT, 0)
    *_, found = agent.stream(PROMPT, 0, 50.0)
    assert found == expected != own
    assert agent.token_details(PROMPT, found.token_ids, 50.0).log_probs == pytest.approx(
        other.token_details(PROMPT, found.token_ids).log_probs
    )
    assert agent.beta == 4.0


def test_details_of_tokens_are_advantages_and_the_kl_to_the_language_model(loaded):
    agent = ChatAgent(loaded, "it")
    prompt, (walk,) = loaded.data.samples("test")[0].prompt_or_input_text, loaded.data.samples("test")[0].references
    ids = encode_reply(loaded.tokenizer, walk, loaded.turn_marker, 8, prompt)
    details = agent.token_details(prompt, ids)
    assert details.missing == {} and details.advantages is not None and details.kl is not None
    assert details.advantages == pytest.approx(loaded.advantages([prompt], [walk])[0])
    assert len(details.advantages) == len(ids) and max(map(abs, details.kl)) > 0.01
    without = agent.token_details(prompt, ids, 0.0)
    assert without.kl == pytest.approx([0.0] * len(ids), abs=1e-5) and without.advantages == details.advantages


def test_reply_that_is_searched_for_appears_as_a_whole(run, loaded):
    config = loaded.config.model_copy(deep=True)
    config.alg.policy.args.guidance.update(search="rerank", n_candidates=4)
    searching = LoadedPolicy(config, run / "model")
    (reply,) = ChatAgent(searching, "it").stream(PROMPT, 0)
    assert reply.finished and reply.text == searching.chat("from j", seed=0)


def test_beta_in_the_terminal(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("from j\n/undo\n/beta 50\nfrom j\n"))
    assert cli.main(["chat", "--run", str(run), "--seed", "0"]) == 0
    assert "you: /beta 50\nbeta is 50.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "file", "what"),
    [
        ({"alg__id": "awac", "alg__policy__args__guidance": None}, False, "awac is not guided"),
        ({"alg__id": "psi_learning"}, True, "learns no V, so there are no advantages"),
        ({"lora": {"r": 2}}, True, None),
        ({"alg__policy__args__guidance": {"beta": 0.0}, **SHARED}, True, None),
    ],
    ids=["awac", "psi_learning", "lora", "beta_0_shared"],
)
def test_other_policies_with_values(settings, file, what, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    run = trained_run(tmp_path, walks_config(**settings))
    assert (run / "model" / "value_guidance.safetensors").is_file() == file
    at_end, of_checkpoint = rl4dialog.load_policy(run), rl4dialog.load_policy(run, "last")
    assert at_end.log_probs([PROMPT], ["p r t"])[0] == pytest.approx(of_checkpoint.log_probs([PROMPT], ["p r t"])[0])
    agent = ChatAgent(at_end, "it")
    *_, said = agent.stream(PROMPT, 0)
    details = agent.token_details(PROMPT, said.token_ids)
    if what is None:
        assert details.missing == {}
        assert at_end.q_values([PROMPT], ["p r t"]) == of_checkpoint.q_values([PROMPT], ["p r t"])
    else:
        assert what in details.missing["advantages"] and "learns no V" in details.missing["values"]
    assert details.kl is not None
    if settings.get("alg__id") == "awac":
        (info,) = lines(run / "training_info.jsonl")
        assert info["train/weight_mean"] > 0 and 0 < info["train/effective_share"] <= 1 + 1e-6
        assert "train/weight_square" not in info
    if not file:
        assert agent.beta is None
        with pytest.raises(ModelError, match="not guided"):
            at_end.q_values([PROMPT], ["p"])
        with pytest.raises(ModelError, match="not guided"):
            next(agent.stream(PROMPT, 0, 1.0))
