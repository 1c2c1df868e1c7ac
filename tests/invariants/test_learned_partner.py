"""A partner that was learned from a log reads what it has learned to read, wants what a sample wants, and leaves."""

import json

import pytest
from runs import contents, keep_registries, make_config, supervised, train, trained_run
from tiny import make_tokenizer

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.sides import END
from rl4dialog.data.tables import Jsonl
from rl4dialog.envs.conversation import ConversationRules, OutsidePartner, PartnersSide
from rl4dialog.rollouts.learned_turns import Limits, learned_turns
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encode_reply
from rl4dialog.text.tokenizer import build_tokenizer

MARKER = "<EOU>"


def rows(n=60):
    for i in range(n):
        said = ["hello , i want a ride", f"to {i % 5} ?", f"yes , to {i % 5}", "done ."]
        messages = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, said, strict=True)]
        yield {"messages": messages, "goal": f"ride {i % 5}", "user": f"u{i % 9}"}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return path


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    keep_registries(monkeypatch)


@pytest.mark.parametrize("opens", [True, False])
def test_prompts_of_the_partner_are_those_that_it_has_learned(log, opens):
    """Whether it begins the conversation, or the sample has its first utterance."""
    people = {"columns": {"dialogue": "messages"}, "learn": "partner", "goal": "goal", "format": "eou"}
    pool = Jsonl.prepare("train", log, **people)
    sample, form = pool[0][0], DialogueFormat("eou", None, in_conversation=True)
    corpus = [json.dumps(row) for row in rows()]
    tokenizer = build_tokenizer("builtin/tiny-gpt2", vocab_size=300, corpus=corpus, turn_marker=MARKER)
    end = EndOfTurn(tokenizer, [tokenizer.eos_token_id], MARKER)
    said = [sample.references[0], *sample.meta_data["continuation"]]
    turns = [Turn(text, AGENT) for text in said]
    learned = learned_turns(sample.prompt_or_input_text, turns, end, Limits(), pool.frame(), ConversationRules())
    side = PartnersSide(OutsidePartner(form, end, len(tokenizer), 200, 40, "goal", ending=END))
    side.begin(sample.meta_data)
    for number in range(0 if opens else 1, 3):
        before = said[: 2 * number]
        assert side.asked(before).prompt_ids == learned[number].prompt, number
        answer = side.answer(encode_reply(tokenizer, said[2 * number], MARKER, prompt=" <EOU>"))
        assert (answer.text, answer.leaves) == ((None, True) if number == 2 else (said[2 * number], False))
    assert said[4] == END


def test_sample_without_a_goal_is_an_error_if_the_partner_has_learned_with_goals():
    end = EndOfTurn(make_tokenizer(marker=MARKER), [0], MARKER)
    side = PartnersSide(OutsidePartner(DialogueFormat("eou", None), end, 20, 100, 20, "goal", needs_persona=True))
    side.begin({"goal": "a ride"})
    with pytest.raises(DataError, match=r"none in meta_data\['goal'\]; set datapool.args.goal"):
        side.begin({})


def test_partner_is_learned_by_one_command_and_met_by_the_next(tmp_path, log):
    args = {
        "path": str(log),
        "columns": {"dialogue": "messages"},
        "held_out_share": 0.2,
        "goal": "goal",
        "format": "eou",
    }
    pool = {"id": "jsonl", "args": {**args, "learn": "partner", "people": {"by": "user", "groups": 2, "only": [0, 1]}}}
    small = {"train_evaluation__metrics": [{"id": "length"}], "train_evaluation__n_iters": 30}
    generation = {"generation_kwargs": {"do_sample": True, "max_new_tokens": 12}}
    learning = {"learning_rate": 0.005, "per_device_train_batch_size": 8, "num_train_epochs": 25}
    config = make_config(
        tmp_path / "partner",
        datapool=pool,
        alg={**supervised(**learning), **generation},
        **small,
        train_evaluation__eval_every=30,
    )
    config["env"] = {"args": {"max_prompt_length": 60, "max_episode_length": 12}}
    partner = trained_run(tmp_path / "partner", config)
    config = make_config(
        tmp_path / "agent",
        datapool={"id": "jsonl", "args": args},
        reward_fn={"id": "length_penalty", "args": {"max_length": 1}},
        env__args__max_prompt_length=60,
        env__args__max_turns=3,
        env__args__max_partner_length=12,
        env__args__first_speaker="partner",
        env__args__partner={"id": "language_model", "args": {"model_name": str(partner)}},
        env__args__partner_on_error="mask",
        train_evaluation__metrics=[{"id": "conversation"}],
        train_evaluation__n_iters=1,
    )
    folder = trained_run(tmp_path / "agent", config)
    records = contents(folder)["epoch_1_test_split_predictions.json"]
    said = [turn["text"] for record in records for turn in record["turns"] if turn["speaker"] == "partner"]
    assert any("ride" in text for text in said) and not any(END in text for text in said)
    assert any(record["ended_by"] == "partner" for record in records)
    del config["datapool"]["args"]["goal"]
    assert train(tmp_path / "agent", config, "--overwrite") == 2
