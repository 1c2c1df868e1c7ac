"""Whatever a partner does, the conversation goes on or fails with a message; those that wait are asked at once."""

import json
import re
import threading
import time

import numpy as np
import pytest
from http_servers import Server
from partners import ANSWERS, LONG, Failing, RulesService
from tiny import make_env, make_env_kwargs, make_samples, make_tokenizer

from rl4dialog.core.errors import DataError, PartnerError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import PARTNER, PartnerReply, Prompt, PromptTurn, Sample
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.partners.openai import OpenAIPartner
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.scores.conversation import OutcomeReward
from rl4dialog.text.end_of_turn import EndOfTurn

SHORT_S = 0.1
DIALOGUES = [Sample(i, Prompt([PromptTurn("w0", " <EOU>")]), ["w1"], {"history": ["w0"]}) for i in range(4)]


def talk_with(partner, **overrides):
    tokenizer = make_tokenizer(marker="<EOU>")
    kwargs = {
        "end_of_turn": EndOfTurn(tokenizer, [0], "<EOU>"),
        "samples": DIALOGUES,
        "partner": partner,
        "max_turns": 3,
        "max_prompt_length": 20,
        **overrides,
    }
    return UtteranceView(make_env(tokenizer, **kwargs), timeout_s=SHORT_S if partner_hangs(partner) else None)


def partner_hangs(partner):
    return getattr(partner, "_answer", None) is time.sleep


def say(view, *words):
    action = np.full(5, -1)
    action[: len(words) + 1] = [*words, 0]
    *_, terminated, _, info = view.step(action)
    return terminated, info


@pytest.mark.parametrize("where", ["reply", "open"])
@pytest.mark.parametrize("name", ANSWERS)
def test_strange_answers_are_said_or_fail(name, where):
    answer, fails = ANSWERS[name]
    view = talk_with(Failing(answer, where), first_speaker="partner" if where == "open" else "sample")
    view.reset(seed=0)
    terminated, info = say(view, 9)
    fails = fails or (name == "none" and where == "open")  # leaves instead
    assert ("error" in info) == fails
    if fails:
        assert terminated and info["partner_failed"]
        assert f"sample {info['sample_id']}" in info["error"] or "Failing" in info["error"]
        view.reset()
        assert view.env.state.context_ids == []
        return
    assert terminated == (answer is None)
    texts = [turn.text for turn in view.env.conversation.dialogue().turns if turn.speaker == PARTNER]
    assert not any(bad in text for bad in ("\0", "\ud800", "<EOU>") for text in texts)
    assert all(text == text.strip() or text == LONG for text in texts)
    if not terminated:
        ids = view.env.state.prompt_ids
        assert len(ids) <= 20 and ids[-1] == view.env.end_of_turn.tokenizer.convert_tokens_to_ids("<EOU>")
        assert say(view, 9)[0] is False and say(view, 9)[0] is True, "the conversation has its three turns"


@pytest.mark.parametrize("name", ["raises", "hangs"])
def test_partner_that_cannot_begin_is_reported_by_the_first_step(name):
    answer, _ = ANSWERS[name]
    view = talk_with(Failing(answer, "reset", every=2))
    results, failed = [], []
    for _ in range(6):
        observation, info = view.reset(seed=0 if not results else None)
        assert observation["prompt_ids"].shape == (20,) and "sample_id" in info
        failed.append(view.env._partner_seed % 2 == 0)
        state = view.state_dict()  # of a conversation that could not begin, too
        again = talk_with(Failing(answer, "reset", every=2))
        np.testing.assert_equal(again.load_state_dict(state), observation)
        results.append(say(view, 9))
        assert (say(again, 9)[1].get("error") is None) == (not failed[-1])
    assert ["error" in info for _, info in results] == failed and any(failed) and not all(failed)
    assert all(terminated and info["partner_failed"] for terminated, info in results if "error" in info)


@pytest.mark.parametrize("outcome", [ZeroDivisionError("lost"), {"success": float("nan")}, 3, {1: 2.0}, time.sleep])
@pytest.mark.parametrize("reads", [True, False])
def test_outcome_that_fails_is_the_partners_failure(outcome, reads):
    parts = [RewardPart("outcome", 1.0, OutcomeReward())] if reads else []
    view = talk_with(Failing(outcome, "outcome"), max_turns=1, reward_parts=parts)
    view.reset(seed=0)
    terminated, info = say(view, 9)
    assert (terminated and info["partner_failed"] and "Failing" in info["error"]) or "the partner" in info["error"]


def test_hanging_reward_is_not_the_partners_failure():
    def slow(*_):
        time.sleep(60)
        return 0.0

    view = talk_with(ScriptedPartner(["w1"]), reward_parts=[RewardPart("slow", 1.0, slow)])
    view._timeout_s = SHORT_S
    view.reset(seed=0)
    _, info = say(view, 9)
    assert "'slow'" in info["error"] and not info["partner_failed"]


def test_agent_that_says_nothing_for_a_whole_conversation():
    view = talk_with(ScriptedPartner(["w1", "w2"]))
    view.reset(seed=0)
    ends = [say(view) for _ in range(3)]
    assert [terminated for terminated, _ in ends] == [False, False, True]
    assert [info["gen_text"] for _, info in ends] == ["", "", ""] and ends[-1][1]["ended_by"] == "max_turns"
    assert [turn.text for turn in view.env.conversation.dialogue().said] == ["", "w1", "", "w2", ""]


def test_one_answer_in_a_hundred_that_fails_leaves_the_other_conversations_alone():
    well = talk_with(Failing("w2"), samples=make_samples(50))
    ill = talk_with(Failing(PartnerReply(failed="no"), every=100), samples=make_samples(50))
    n_failed = 0
    for i in range(300):
        observations = [view.reset(seed=0 if i == 0 else None)[0] for view in (well, ill)]
        np.testing.assert_equal(*observations)
        one, other = say(well, 9), say(ill, 9)
        if "error" in other[1]:
            n_failed += 1
        else:
            assert one[1]["gen_text"] == other[1]["gen_text"] and one[0] == other[0]
    assert 0 < n_failed < 15


# -- partners that wait -----------------------------------------------------------------------------------------------

N_ENVS, N_TURNS = 4, 2
NUMBERED = [Sample(i, Prompt([PromptTurn("w0", "\n")]), ["w1"], {"history": ["w0"]}) for i in range(N_ENVS)]


@pytest.mark.parametrize("first_speaker", ["sample", "partner"])
@pytest.mark.parametrize("vec_env", ["dummy", "blocks"])
def test_requests_of_all_environments_are_under_way_together(vec_env, first_speaker):
    together = threading.Barrier(N_ENVS, timeout=30)

    def answer(handler):
        is_reset = '"w2"' not in handler.body.decode()
        if not (vec_env == "dummy" and is_reset and episodes):  # openings in the middle of a step wait in line there
            together.wait()
        handler.send(json.dumps({"choices": [{"message": {"content": "w3"}}]}))

    with Server(answer) as server:
        partner = OpenAIPartner(server.url.replace("/reply", "/v1"), "m", retries=0)
        kwargs = {"partner": partner, "first_speaker": first_speaker, "max_turns": N_TURNS}
        env = make_vec_env(
            make_env_kwargs(samples=NUMBERED, max_prompt_length=20, **kwargs), N_ENVS, vec_env, n_workers=1
        )
        episodes = []
        env.seed(0)
        env.reset()
        w2 = np.full((N_ENVS, 5), -1)
        w2[:, :2] = 5, 0
        for turn in range(2 * N_TURNS):
            if turn == N_TURNS - 1:
                episodes.append(1)
            _, _, dones, infos = env.step(w2)
            assert not any("error" in info for info in infos), infos
            assert dones.all() == (turn % N_TURNS == N_TURNS - 1)
        env.close()
    n_openings = 3 * N_ENVS if first_speaker == "partner" else 0
    assert len(server.requests) == 2 * N_TURNS * N_ENVS + n_openings


class Knows(ScriptedPartner):
    """Knows a text, which may depend on the seed."""

    def __init__(self, told):
        super().__init__(["w1", "w2"])
        self._told = told

    def reset(self, meta_info, seed):
        super().reset(meta_info, seed)
        self._seed = seed

    def secret(self):
        return self._told(self._seed) if callable(self._told) else self._told


def secrets_in(observation):
    return observation["secret_ids"][observation["secret_mask"] == 1].tolist()


def test_secret_is_shown_from_the_first_observation_to_the_last_and_again_after_resuming():
    view = talk_with(Knows(lambda seed: f"w{seed % 7} w3"), max_secret_length=5)
    observation, _ = view.reset(seed=0)
    first, state = secrets_in(observation), view.state_dict()
    tokenizer = view.env.tokenizer
    assert len(first) == 3 and tokenizer.decode(first[1:]) == "w3 <EOU>"
    shown = [secrets_in(view.step(np.array([3, 0, -1, -1, -1]))[0]) for _ in range(3)]
    assert shown == [first] * 3 and view.env.conversation.n_turns == 3
    assert {tuple(secrets_in(view.reset()[0])) for _ in range(5)} != {tuple(first)}
    again = talk_with(Knows(lambda seed: f"w{seed % 7} w3"), max_secret_length=5)
    assert secrets_in(again.load_state_dict(state)) == first
    assert observation["secret_ids"].shape == (5,) and view.observation_space.contains(observation)
    assert not any(name.startswith("secret") for name in talk_with(Knows("w1")).reset(seed=0)[0])


def test_secret_is_the_persona_of_a_partner_outside_and_without_one_the_references():
    samples = [Sample("s", "w0", ["w1 w2", "w3"])]
    env = make_env(make_tokenizer(), samples=samples, max_secret_length=4)
    assert env.tokenizer.decode(secrets_in(env.reset(seed=0)[0])) == "w1 w2 w3"
    tokenizer = make_tokenizer(marker="<EOU>")
    side = RulesService([{"pattern": "x", "replies": "w1"}], tokenizer=tokenizer).side
    persona = {"history": ["w0"], "partner_persona": ["w4", "w5"]}
    samples = [Sample("s", Prompt([PromptTurn("w0", " <EOU>")]), [], persona)]
    view = talk_with(None, outside_partner=side, samples=samples, max_secret_length=4)
    assert tokenizer.decode(secrets_in(view.reset(seed=0)[0])) == "w4 w5 <EOU>"


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ("", DataError, "sample 0: the secret of partner 'Knows' has no text, but .*critic_reads: secret needs it"),
        ("w1 " * 5, DataError, "the secret of partner 'Knows' has 6 tokens .*max_secret_length is 5; raise it"),
        (3, PartnerError, "partner 'Knows' returned 3, of type int"),
        (lambda seed: {}[seed], PartnerError, "'Knows' failed to tell the secret of sample 0: KeyError"),
    ],
)
def test_secret_that_no_critic_can_read_is_refused(told, error, message):
    view = talk_with(Knows(told), max_secret_length=5, samples=DIALOGUES[:1])
    if error is DataError:
        with pytest.raises(error, match=message):
            view.reset(seed=0)
        return
    observation, _ = view.reset(seed=0)
    assert not secrets_in(observation) and re.search(message, say(view, 9)[1]["error"])
