import functools
import pickle
import threading

import gymnasium.utils.env_checker
import numpy as np
import pytest
import stable_baselines3.common.env_checker
from tiny import make_env, make_samples, make_tokenizer

from rl4dialog.core.errors import ConfigError, DataError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.text_generation import SharedSamples, sampling_probabilities, sampling_weights
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.text.end_of_turn import EndOfTurn


def test_samples_come_back_as_they_were():
    samples = [*make_samples(), Sample("last", "w0", [], None)]
    shared = pickle.loads(pickle.dumps(SharedSamples(samples)))
    assert list(shared) == samples and len(shared) == 7
    assert shared[-1] == samples[-1] and shared[1:3] == samples[1:3]
    with pytest.raises(IndexError):
        shared[7]
    assert len(SharedSamples([])) == 0


def test_sample_that_cannot_be_pickled_is_named():
    with pytest.raises(DataError, match="sample 's7' cannot be pickled: TypeError"):
        SharedSamples([*make_samples(), Sample("s7", "w0", [], {"lock": threading.Lock()})])


def test_weights_are_kept_and_none_if_alike():
    pairs = [(sample, float(i)) for i, sample in enumerate(make_samples(3), 1)]
    np.testing.assert_array_equal(SharedSamples(pairs).weights, [1, 2, 3])
    assert SharedSamples(pairs)[2] == make_samples(3)[2]
    assert sampling_weights([(sample, 2.0) for sample in make_samples(3)]) is None
    assert sampling_weights([]) is None


def test_extreme_weights_and_scales_stay_probabilities():
    for weights in ([1e-300, 1e300], [5e-324, 1.0]):
        for scale in (0.5, 1.0, 1e6):
            probabilities = sampling_probabilities(np.array(weights), scale)
            assert np.isfinite(probabilities).all() and probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_order_is_that_of_a_list(weight):
    samples = [(sample, 1.0 if i else weight) for i, sample in enumerate(make_samples())]
    orders = []
    for given in (samples, SharedSamples(samples)):
        env = make_env(make_tokenizer(), samples=given)
        orders.append([env.reset(seed=3)[1]["sample_id"]] + [env.reset()[1]["sample_id"] for _ in range(13)])
    assert orders[0] == orders[1]


def constant(value):
    return lambda previous, action, current, done, meta: value


def test_env_checkers_of_gymnasium_and_stable_baselines3_pass():
    env = make_env(make_tokenizer())
    gymnasium.utils.env_checker.check_env(env, skip_render_check=True)
    stable_baselines3.common.env_checker.check_env(env)


def test_prompt_is_left_padded_and_context_right_padded():
    env = make_env(make_tokenizer())
    env.reset(options={"sample": Sample("s", "w0 w1", ["w2"])})
    obs = env.step(7)[0]
    assert obs["prompt_ids"].tolist() == [1, 1, 1, 1, 3, 4]
    assert obs["prompt_mask"].tolist() == [0, 0, 0, 0, 1, 1]
    assert obs["context_ids"].tolist() == [7, 1, 1, 1, 1]
    assert obs["context_mask"].tolist() == [1, 0, 0, 0, 0]


def test_every_end_of_sequence_id_terminates_and_the_limit_truncates():
    tokenizer = make_tokenizer()
    for last, terminated in ((0, True), (9, True), (8, False)):
        env = make_env(tokenizer, end_of_turn=EndOfTurn(tokenizer, [0, 9]))
        env.reset(seed=0)
        for token in (5, 6, 7, 8):
            assert env.step(token)[2:4] == (False, False)
        result = env.step(last)
        assert result[2:4] == (terminated, not terminated)
        assert result[1] > 1, "every episode pays its reward, whatever ended it"


def test_same_seed_gives_the_same_episodes_and_each_sample_once_per_round():
    tokenizer = make_tokenizer()
    orders = []
    for seed in (1, 1, 2):
        env = make_env(tokenizer)
        orders.append([env.reset(seed=seed)[1]["sample_id"]] + [env.reset()[1]["sample_id"] for _ in range(5)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(6))


@pytest.mark.parametrize(("scale", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 0.9), (2.0, 81 / 82)])
def test_priority_scale_says_how_much_the_weights_decide(scale, share):
    samples = [(Sample("often", "w0", [""]), 9.0), (Sample("seldom", "w1", [""]), 1.0)]
    env = make_env(make_tokenizer(), samples=samples, priority_scale=scale)
    drawn = [env.reset(seed=0)[1]["sample_id"]] + [env.reset()[1]["sample_id"] for _ in range(1999)]
    assert drawn.count("often") / 2000 == pytest.approx(share, abs=0.0 if scale == 0 else 0.03)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "high"])
def test_reward_that_is_no_finite_number_names_the_sample(value):
    env = make_env(make_tokenizer(), reward_parts=[RewardPart("mine", 1.0, constant(value))])
    env.reset(options={"sample": Sample("s17", "w0", [""])})
    with pytest.raises(RewardError, match=r"'mine'.*'s17'"):
        env.step(5)


def test_no_samples_is_an_error():
    with pytest.raises(DataError, match="at least one sample"):
        make_env(make_tokenizer(), samples=[])


def test_more_turns_without_a_partner_is_an_error():
    with pytest.raises(ConfigError, match=r"env\.args\.partner"):
        make_env(make_tokenizer(), max_turns=2)


def conversation(**overrides):
    tokenizer = make_tokenizer(marker="<EOU>")
    marker_id = tokenizer.convert_tokens_to_ids("<EOU>")
    arguments = {
        "end_of_turn": EndOfTurn(tokenizer, [0], "<EOU>"),
        "partner": ScriptedPartner(["w7 w8"]),
        "max_turns": 2,
        "max_prompt_length": 12,
        **overrides,
    }
    env = make_env(tokenizer, **arguments)
    env.marker_id = marker_id
    return env


def test_partner_answers_and_the_conversation_goes_on_from_the_longer_history():
    env = conversation()
    env.reset(options={"sample": Sample("s", "w0 <EOU>", ["w2"])})
    env.step(9)
    observation, _, terminated, truncated, info = env.step(env.marker_id)
    assert (terminated, truncated, info["utterance_over"]) == (False, False, True)
    marker = env.marker_id
    ids = observation["prompt_ids"][observation["prompt_mask"] == 1].tolist()
    assert ids == [3, marker, 9, marker, 10, 11, marker], "ids of past turns are carried as they were"
    assert observation["context_mask"].sum() == 0
    assert env.step(marker)[2] is True, "the last turn's end ends the episode"


def test_reply_that_is_cut_in_mid_conversation_ends_nothing():
    """Only the last reply decides how a conversation ended, and a partner who leaves ends it whatever was cut."""
    for partner, after_the_first in ((["w7"], (False, False)), ([], (True, False))):
        env = conversation(partner=ScriptedPartner(partner), max_prompt_length=20)
        env.reset(seed=0)
        results = [env.step(9) for _ in range(env.max_episode_length)]
        assert [result[2:4] for result in results] == [(False, False)] * 4 + [after_the_first]
        assert results[-1][4]["utterance_over"] and results[-1][4]["utterance_truncated"]
    env = conversation(max_prompt_length=20)
    env.reset(seed=0)
    ends = [env.step(9)[2:4] for _ in range(2 * env.max_episode_length)]
    assert ends == [(False, False)] * 9 + [(False, True)]


CHATML = (
    "{% for m in messages %}{{ '<eos> ' + m['role'] + ' ' + m['content'] + ' <eos> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<eos> assistant ' }}{% endif %}"
)


def test_chat_template_frames_the_partners_reply_as_the_users():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["user", "assistant"])
    user, assistant = tokenizer.convert_tokens_to_ids(["user", "assistant"])
    tokenizer.chat_template = CHATML
    render = functools.partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    chat = DialogueFormat("chat_template", 1, render)
    env = make_env(
        tokenizer,
        partner=ScriptedPartner(["w7"]),
        max_turns=2,
        max_prompt_length=20,
        vocab_size=len(tokenizer),
        frame=chat.frame(),
    )
    env.reset(options={"sample": Sample("s", chat.prompt(["w0"]), ["w2"])})
    env.step(9)
    observation, *_, info = env.step(0)
    ids = observation["prompt_ids"][observation["prompt_mask"] == 1].tolist()
    assert ids == [0, user, 3, 0, 0, assistant, 9, 0, 0, user, 10, 0, 0, assistant]
    assert ids == tokenizer(env.state.prompt_or_input_text)["input_ids"], "rewards read the same conversation"
    assert info["utterance_over"]


def test_a_view_step_equals_the_env_steps():
    tokenizer = make_tokenizer()
    env, view = make_env(tokenizer), UtteranceView(make_env(tokenizer))
    env.reset(seed=4)
    view.reset(seed=4)
    rewards = []
    for token in (5, 6, 0):
        obs, reward, terminated, truncated, _ = env.step(token)
        rewards.append(reward)
    view_obs, total, *ends, info = view.step(np.array([5, 6, 0, -1, -1]))
    assert total == pytest.approx(sum(rewards))
    np.testing.assert_allclose(info["reward_parts"]["words"], rewards, rtol=1e-6)
    assert ends == [terminated, truncated]
    for key, array in obs.items():
        np.testing.assert_array_equal(array, view_obs[key])


def test_waiting_changes_nothing():
    view = UtteranceView(make_env(make_tokenizer()))
    before, _ = view.reset(seed=0)
    after, reward, terminated, truncated, _ = view.step(np.full(5, -1))
    assert (reward, terminated, truncated) == (0.0, False, False)
    np.testing.assert_array_equal(before["prompt_ids"], after["prompt_ids"])


@pytest.mark.parametrize(
    ("action", "message"),
    [([5, 0, 6, -1, -1], "ended after 2 tokens"), ([5, 6, -1, -1, -1], "do not end"), ([5, -1, 6, -1, -1], "padding")],
)
def test_view_refuses_what_is_no_utterance(action, message):
    view = UtteranceView(make_env(make_tokenizer()))
    view.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        view.step(np.array(action))


def test_failed_reward_is_reported_through_the_info():
    view = UtteranceView(make_env(make_tokenizer(), reward_parts=[RewardPart("bad", 1.0, constant(None))]))
    view.reset(options={"sample": Sample("s3", "w0", [""])})
    _, _, terminated, _, info = view.step(np.array([0, -1, -1, -1, -1]))
    assert terminated
    assert "'bad'" in info["error"] and "'s3'" in info["error"]
