"""A tool answers calls in the environment instead of the partner, wherever the partner is."""

import numpy as np
import pytest
from partners import RulesService
from tiny import make_env, make_env_kwargs, make_tokenizer
from tool_cases import Hears, shop_toolbox

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Prompt, PromptTurn, Sample
from rl4dialog.data.conversations.record import logged_record, read_dialogues
from rl4dialog.data.rows import Row
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.features.tools.right_calls import RightCallReward
from rl4dialog.functional.replies import Row as ReplyRow
from rl4dialog.functional.replies import joined_rows
from rl4dialog.runs.reading import conversation_record, recorded_conversation
from rl4dialog.text.end_of_turn import EndOfTurn

CALL = "call buy item=w1; n=2; size=S"
INFO = {"history": ["w0"], "gold_call": {"name": "buy", "arguments": {"item": "w1", "n": 2, "size": "M"}}}
WORDS = [*(f"w{i}" for i in range(6)), *CALL.split(), "sold", ";", "error:", "size=XL", "fail"]


def tokenizer_of_calls():
    return make_tokenizer(marker="<EOU>", words=WORDS)


def view_with(partner, **overrides):
    tokenizer = tokenizer_of_calls()
    kwargs = {
        "end_of_turn": EndOfTurn(tokenizer, [0], "<EOU>"),
        "samples": [Sample("s", Prompt([PromptTurn("w0", " <EOU>")]), ["w1"], INFO)],
        "partner": partner,
        "toolbox": shop_toolbox(),
        "max_turns": 5,
        "max_prompt_length": 60,
        "max_episode_length": 8,
        "reward_parts": [RewardPart("right_call", 1.0, RightCallReward())],
        **overrides,
    }
    return UtteranceView(make_env(tokenizer, **kwargs))


def say(view, text, ends=True):
    ids = view.env.tokenizer(f"{text} <EOU>" if ends else text)["input_ids"]
    action = np.full(view.action_space.shape[0], -1)
    action[: len(ids)] = ids
    *_, terminated, truncated, info = view.step(action)
    return terminated or truncated, info


def spoken(view):
    return [(turn.speaker, turn.text) for turn in view.env.conversation.dialogue().said]


def test_tool_answers_and_the_partner_does_not_hear_it():
    partner = Hears()
    view = view_with(partner)
    view.reset(seed=0)
    assert say(view, CALL)[0] is False and say(view, "w2")[0] is False and say(view, "call fail")[0] is False
    say(view, "w3")
    assert partner.heard == [["w0", "w2"], ["w0", "w2", "w1", "w3"]]
    said = spoken(view)
    assert [speaker for speaker, _ in said] == [AGENT, TOOL, AGENT, PARTNER, AGENT, TOOL, AGENT, PARTNER]
    assert said[1][1] == "sold {'item': 'w1', 'n': 2, 'size': 'S'} ; 2 in all" and said[5][1] == "error: fail failed"
    over, info = say(view, "w4")
    assert over and info["ended_by"] == "max_turns" and info["reward_parts"]["right_call"][-1] == 0, (
        "the last call failed"
    )
    dialogue = view.env.conversation.dialogue("max_turns")
    assert [call.name for call in dialogue.calls] == ["buy", "fail"] and dialogue.calls[0].arguments["n"] == 2
    wanted = {"calls": 2, "failed_calls": 1, "tool_faults": 1, "right_slots": 0, "right_call": 0}
    assert dialogue.outcome == wanted


@pytest.mark.parametrize("ends_after", [["buy"], "all"])
def test_good_call_can_end_the_conversation(ends_after):
    view = view_with(Hears(), toolbox=shop_toolbox(ends_after=ends_after))
    view.reset(seed=0)
    assert say(view, "call buy item=w1; n=2; size=XL")[0] is False, "an error ends nothing"
    over, info = say(view, CALL)
    assert over and info["ended_by"] == "agent" and info["reward_parts"]["right_call"][-1] == pytest.approx(2 / 3)


def test_cut_call_is_not_executed():
    view = view_with(Hears(), max_episode_length=3)
    view.reset(seed=0)
    say(view, "call buy item=w1;", ends=False)
    assert spoken(view)[1] == (TOOL, "error: the call was cut at the length limit")


def test_answer_has_no_markup_of_the_format():
    view = view_with(Hears())
    view.env.conversation.toolbox._tools["fail"].call = lambda name, arguments: "w1 <EOU> w2"
    view.reset(seed=0)
    say(view, "call fail")
    assert spoken(view)[1] == (TOOL, "w1   w2")
    text = view.env.tokenizer.decode(view.env.state.prompt_ids)
    assert text == "w0 <EOU> call fail <EOU> w1 w2 <EOU>"


def test_partner_outside_is_not_asked_for_calls():
    tokenizer = tokenizer_of_calls()
    service = RulesService([{"pattern": "w2", "replies": "w5"}], tokenizer=tokenizer)
    view = view_with(None, outside_partner=service.side)
    view.reset(seed=0)
    _, info = say(view, CALL)
    assert "reward_parts" in info and view.env.speaker == AGENT, "the turn is complete"
    _, info = say(view, "w2")
    assert "reward_parts" not in info and view.env.speaker == PARTNER
    (answer,) = service.answers({name: array[None] for name, array in view._observation.items()})
    action = np.full(view.action_space.shape[0], -1)
    action[: len(answer)] = answer
    view.step(action)
    assert len(service.seen) == 1 and service.seen[0].endswith("w2 <EOU>") and "call" not in service.seen[0]
    assert [speaker for speaker, _ in spoken(view)] == [AGENT, TOOL, AGENT, PARTNER]


def test_partner_is_not_prepared_for_calls():
    class Waits(Hears):
        waits = True

        def expect(self, history):
            self.expected = history

    partner = Waits()
    view = view_with(partner)
    view.reset(seed=0)
    for said in ("w2", CALL):
        view.expect_step(np.array(view.env.tokenizer(f"{said} <EOU>")["input_ids"]))
    assert partner.expected == ["w0", "w2"]


def test_answers_of_tools_are_not_trained_but_read():
    view = view_with(Hears())
    view.reset(seed=0)
    rows = []
    for said in (CALL, "w2", "w3"):
        ids = view.env.tokenizer(f"{said} <EOU>")["input_ids"]
        rows.append(ReplyRow(view.env.state.prompt_ids, ids))
        say(view, said)
    (row,) = joined_rows(rows)
    learned = [id for id, is_agents in zip(row.response, row.is_agents, strict=True) if is_agents]
    assert learned == [id for each in rows for id in each.response]
    decode = view.env.tokenizer.decode
    others = decode([id for id, is_agents in zip(row.response, row.is_agents, strict=True) if not is_agents])
    assert "sold" in others and "w1 <EOU>" in others


def test_copies_in_workers_do_the_same_as_here():
    tokenizer = tokenizer_of_calls()
    kwargs = make_env_kwargs(
        end_of_turn=EndOfTurn(tokenizer, [0], "<EOU>"),
        samples=[Sample(i, Prompt([PromptTurn("w0", " <EOU>")]), ["w1"], INFO) for i in range(4)],
        partner=Hears(),
        toolbox=shop_toolbox(),
        max_turns=3,
        max_prompt_length=40,
        max_episode_length=8,
        vocab_size=len(tokenizer),
        reward_parts=[RewardPart("right_call", 1.0, RightCallReward())],
    )
    found = []
    for vec_env in ("dummy", "blocks", "subproc"):
        env = make_vec_env(kwargs, n_envs=2, vec_env=vec_env, n_workers=2)
        try:
            env.seed(3)
            observations = [env.reset()]
            for said in (CALL, "call fail", "w3", CALL):
                ids = tokenizer(f"{said} <EOU>")["input_ids"]
                actions = np.full((2, 8), -1)
                actions[:, : len(ids)] = ids
                env.step_async(actions)
                observations.append(env.step_wait()[0])
            found.append(np.concatenate([each["prompt_ids"] for each in observations]))
        finally:
            env.close()
    assert all((each == found[0]).all() for each in found) and (found[0] != found[0][0]).any()


def test_records_keep_calls_and_answers():
    view = view_with(Hears())
    view.reset(seed=0)
    for said in (CALL, "w2", "call fail"):
        say(view, said)
    dialogue = view.env.conversation.dialogue("max_turns")
    record = conversation_record(dialogue)
    assert record["turns"][1]["call"] == {
        "name": "buy",
        "arguments": {"item": "w1", "n": 2, "size": "S"},
        "problem": "",
    }
    read = recorded_conversation({**record, "sample_id": "s"})
    assert [(turn.speaker, turn.text) for turn in read.turns] == [(turn.speaker, turn.text) for turn in dialogue.turns]
    assert [call.problem for call in read.calls] == ["", "failed"]
    line = logged_record(dialogue)
    roles = [message["role"] for message in line["messages"]]
    assert roles[1:] == ["assistant", "tool", "assistant", "user", "assistant", "tool"]
    (again,) = read_dialogues(Row(line, "line 1"), 0)
    assert [(turn.speaker, turn.text) for turn in again.turns] == [(turn.speaker, turn.text) for turn in dialogue.turns]
