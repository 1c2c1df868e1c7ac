"""Environments in blocks, in a process each and in this process: the same steps, and what happens when they fail."""

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from tiny import make_env, make_env_kwargs, make_samples, make_tokenizer

from rl4dialog.core.errors import DataError, EnvWorkerError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs import vectorize
from rl4dialog.envs.vectorize import BlockVecEnv, make_vec_env, worker_count
from rl4dialog.envs.worker import make_utterance_env
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.text.end_of_turn import EndOfTurn

T = 5
# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Counter(gym.Env):
    """An environment of three steps with pictures; the second action does what ``fault`` says."""

    observation_space = spaces.Tuple([spaces.Box(0, 9, (2,), np.float32), spaces.Discrete(5)])
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, fault=""):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return self._observe(), {} if seed is None else {"seed": seed, "options": options}

    def step(self, action):
        if action == 1 and self.fault == "raise":
            raise ValueError("not one")
        if action == 1 and self.fault == "exit":
            os._exit(7)
        if action == 1 and self.fault == "sleep":
            time.sleep(600)
        self.n += 1
        return self._observe(), 1 / 3, self.n == 3, self.n == 3 and bool(action), {"n": self.n}

    def render(self):
        return np.full((2, 2, 3), self.n, dtype=np.uint8)

    def add(self, a, b=0):
        return a + b + self.n

    def here(self):
        return os.getpid()

    def collect(self):
        self.things.append(1)
        return len(self.things)

    def lock(self):
        return threading.Lock()

    def kind(self):
        return type(self)

    def _observe(self):
        return np.full(2, self.n, dtype=np.float32), self.n


@pytest.fixture
def open_env():
    opened = []

    def build(*args, **kwargs):
        opened.append(BlockVecEnv(*args, **kwargs))
        return opened[-1]

    yield build
    for env in opened:
        env.close()


@pytest.fixture
def three(open_env):
    """The same environments in blocks, in a process each, and in this one."""
    others = []

    def build(env_fns, n_workers):
        others.extend([SubprocVecEnv(list(env_fns), start_method="fork"), DummyVecEnv(list(env_fns))])
        return [open_env(env_fns, n_workers), *others]

    yield build
    for env in others:
        env.close()


def assert_same(a, b):
    if isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple))
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert type(a) is type(b)
        assert a == b


def assert_same_steps(envs, actions):
    """Step blocks, processes and the dummy, compare everything; gives what is done."""
    (obs, rewards, dones, infos), *others = [env.step(actions) for env in envs]
    for other_obs, other_rewards, other_dones, other_infos in others:
        assert_same(obs, other_obs)
        # The dummy's rewards are of single precision.
        np.testing.assert_array_equal(rewards.astype(other_rewards.dtype), other_rewards)
        assert_same(dones, other_dones)
        assert_same(infos, list(other_infos))
    assert rewards.dtype == others[0][1].dtype
    for env in envs[1:]:
        assert_same(list(envs[0].reset_infos), list(env.reset_infos))
    return dones


def utterance_env_kwargs(**overrides):
    tokenizer = make_tokenizer()

    def reward(previous, action, current, done, meta):
        return 0.1 * action + done * len(current.context_text)

    return {
        "end_of_turn": EndOfTurn(tokenizer, [0]),
        "samples": make_samples(),
        "reward_parts": [RewardPart("words", 0.7, reward)],
        "max_prompt_length": 12,
        "max_episode_length": T,
        "vocab_size": len(tokenizer),
        **overrides,
    }


def utterances(rng, n_envs):
    """Some end, some are cut at the limit, and some environments wait."""
    actions = np.full((n_envs, T), -1)
    for row in actions:
        n = rng.integers(0, T + 1)
        row[:n] = rng.integers(3, 20, n)
        if n and (n < T or rng.random() < 0.5):
            row[n - 1] = 0
    return actions


@pytest.mark.parametrize(("n_envs", "n_workers", "seeds"), [(5, 2, [7, 7, 8, 8, 9]), (3, 3, None), (4, 1, None)])
def test_conversations_in_blocks_equal_those_in_a_process_each_and_in_this_one(three, n_envs, n_workers, seeds):
    kwargs = utterance_env_kwargs(partner=ScriptedPartner(["w1 w2", "w3"]), max_turns=3)
    envs = three([functools.partial(make_utterance_env, kwargs)] * n_envs, n_workers)
    for env in envs:
        env.seed(11)
        if seeds is not None:
            env._seeds = list(seeds)
    first, *others = [env.reset() for env in envs]
    for other in others:
        assert_same(first, other)
    rng = np.random.default_rng(0)
    n_done = sum(assert_same_steps(envs, utterances(rng, n_envs)) for _ in range(40))
    assert (n_done > 3).all(), "every environment has begun new episodes by itself"
    if seeds is not None:
        for env in envs:
            env._seeds = list(seeds)
            prompts = env.reset()["prompt_ids"]
            assert_same(prompts[0], prompts[1])
            assert_same(prompts[2], prompts[3])


def test_time_limits_seeds_and_options_as_stable_baselines3(three):
    def make_cart_pole():
        return gym.make("CartPole-v1", max_episode_steps=7)

    envs = three([make_cart_pole] * 5, 2)
    bounds = [{"low": -0.01 * i, "high": 0.01 * i} for i in range(1, 6)]
    for env in envs:
        env.seed(3)
        env.set_options(bounds)
    first, *others = [env.reset() for env in envs]
    for other in others:
        assert_same(first, other)
    assert [np.abs(row).max() <= 0.01 * i for i, row in enumerate(first, 1)] == [True] * 5
    rng = np.random.default_rng(1)
    n_done = sum(assert_same_steps(envs, rng.integers(0, 2, 5)) for _ in range(30))
    assert (n_done >= 3).all()
    for env in envs:
        env.seed(4)
    again = [env.reset() for env in envs]
    assert_same(again[0], again[2])
    assert not np.array_equal(first, again[0]), "seeds and options are used once"


def test_attributes_methods_and_wrappers_as_stable_baselines3(three):
    envs = three([lambda: gym.wrappers.TimeLimit(Counter(), 9)] * 5, 2)
    for env in envs:
        env.seed(20)
        env.reset()
        env.step(np.array([0, 1, 0, 1, 0]))
        env.set_attr("label", "x", [0, 4])
        env.set_attr("label", "y", range(1, 4))
        assert env.get_attr("label") == ["x", "y", "y", "y", "x"]
        assert env.get_attr("label", [4, 1, 4, -2]) == ["x", "y", "x", "y"]
        assert env.get_attr("n", 3) == [1]
        assert env.env_method("add", 5, b=10, indices=[3, 0]) == [16, 16]
        assert env.has_attr("label") and not env.has_attr("lable")
        assert env.env_is_wrapped(gym.wrappers.TimeLimit) == [True] * 5
        assert env.env_is_wrapped(gym.Wrapper, 2) == [True]
        assert env.env_is_wrapped(Monitor, [1, 2]) == [False, False]
        assert env.render_mode == "rgb_array"
        np.testing.assert_array_equal(np.stack(env.get_images()), np.ones((5, 2, 2, 3)))
        assert env.render().shape == (6, 4, 3)
        with pytest.raises(IndexError):
            env.get_attr("n", [5])
        assert list(env.reset_infos) == [{"seed": 20 + i, "options": None} for i in range(5)]
        for _ in range(2):
            env.step(np.zeros(5, dtype=int))
        assert list(env.reset_infos) == [{}] * 5
    for env in (envs[0], envs[2]):
        with pytest.raises(AttributeError, match="lable"):
            env.get_attr("lable")


def test_every_environment_is_given_an_object_of_its_own(open_env):
    env = open_env([Counter] * 3, 1)
    env.set_attr("things", [])
    assert env.env_method("collect", indices=0) == [1]
    assert env.get_attr("things") == [[1], [], []]


def test_reset_forgets_a_step_that_nobody_waited_for(open_env):
    env = open_env([Counter] * 3, 2)
    env.reset()
    env.step_async(np.zeros(3, dtype=int))
    assert env.reset()[1].tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="no step_async"):
        env.step_wait()
    assert env.step(np.zeros(3, dtype=int))[0][1].tolist() == [1, 1, 1]


def test_blocks_and_workers(open_env, monkeypatch):
    env = open_env([Counter] * 5, 2)
    pids = env.env_method("here")
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 3] and pids == sorted(pids, key=pids.index)
    assert list(dict.fromkeys(pids)) == [process.pid for process in env.processes]
    monkeypatch.setattr(vectorize.joblib, "cpu_count", lambda: 4)
    cases = {(128,): 4, (3,): 3, (128, 16): 16, (4, 16): 4, (5, None, "subproc"): 5, (5, 2, "dummy"): 0}
    assert [worker_count(*arguments) for arguments in cases] == list(cases.values())


class Sees(Counter):
    def variable(self):
        return os.environ.get("KEY_OF_A_PARTNER")


def test_workers_have_the_environment_variables_of_now(monkeypatch):
    for value in (None, "set after the fork server has started"):
        if value is not None:
            monkeypatch.setenv("KEY_OF_A_PARTNER", value)
        env = vectorize.vectorize([Sees] * 2, "blocks", 1)
        assert env.env_method("variable") == [value] * 2 and len(env.processes) == 1
        env.close()


class Heavy(gym.Wrapper):
    """Tells what its process has imported."""

    def heavy(self):
        return sorted({"torch", "stable_baselines3", "datasets", "pandas"} & sys.modules.keys())


def test_worker_imports_neither_torch_nor_stable_baselines3(open_env):
    kwargs = utterance_env_kwargs()
    env = open_env([lambda: Heavy(make_utterance_env(kwargs))] * 4, 2)
    env.seed(0)
    env.reset()
    env.step(utterances(np.random.default_rng(0), 4))
    assert env.env_is_wrapped(Monitor) == [False] * 4
    assert env.env_method("heavy") == [[]] * 4


# -- conversations ----------------------------------------------------------------------------------------------------


WEIGHTED = {"samples": [(sample, 1.0 + i) for i, sample in enumerate(make_samples())], "priority_scale": 2.0}


@pytest.mark.parametrize("overrides", [{}, WEIGHTED], ids=["alike", "weighted"])
@pytest.mark.parametrize("kind", ["dummy", "blocks"])
def test_vectorized_envs_have_different_seeds_and_give_the_same_episodes(kind, overrides):
    vec_env = make_vec_env(make_env_kwargs(**overrides), 3, kind)
    alone = [make_env(make_tokenizer(), **overrides) for _ in range(3)]
    try:
        vec_env.seed(5)
        prompts = vec_env.reset()["prompt_ids"]
        for i, env in enumerate(alone):
            np.testing.assert_array_equal(prompts[i], env.reset(seed=5 + i)[0]["prompt_ids"])
        for _ in range(8):
            prompts = vec_env.step(np.array([[0, -1, -1, -1, -1]] * 3))[0]["prompt_ids"]
            np.testing.assert_array_equal(prompts, [env.reset()[0]["prompt_ids"] for env in alone])
    finally:
        vec_env.close()


class Remembers:
    """Pays what it has seen so far."""

    def __init__(self):
        self.n_calls = 0

    def __call__(self, previous, action, current, done, meta):
        self.n_calls += 1
        meta["n"] = meta["n"] + 100
        return float(self.n_calls)


@pytest.mark.parametrize(("kind", "n_workers"), [("dummy", None), ("blocks", 1), ("blocks", 3)])
def test_reward_that_remembers_is_each_environments_own(kind, n_workers):
    env = make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Remembers())]), 3, kind, n_workers)
    try:
        env.seed(0)
        env.reset()
        for total in (1 + 2, 3 + 4):
            _, rewards, _, infos = env.step(np.array([[5, 0, -1, -1, -1]] * 3))
            assert rewards.tolist() == [total] * 3
            assert all(200 <= info["meta_info"]["n"] < 300 for info in infos), "a sample is fresh in each episode"
    finally:
        env.close()


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ({"reward_parts": []}, "dummy"),
        ({"reward_parts": [RewardPart("mine", 1.0, Remembers())]}, "blocks"),
        ({"reward_parts": [], "partner": ScriptedPartner(["w1"])}, "blocks"),
    ],
)
def test_workers_are_used_if_they_have_something_to_do(overrides, kind):
    assert vectorize.check_workers(make_env_kwargs(**overrides)) == kind
    assert vectorize.check_workers(make_env_kwargs(**overrides), "subproc") == "subproc"


def test_reward_that_cannot_be_copied_says_how_to_share_it():
    class Locked(Remembers):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    class Shared(Locked):
        def __deepcopy__(self, memo):
            return self

    with pytest.raises(RewardError, match=r"'mine' cannot be copied.*__deepcopy__"):
        make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Locked())]), 2, "dummy")
    make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Shared())]), 2, "dummy").close()


@pytest.mark.parametrize("kind", ["dummy", "blocks"])
def test_tokenizer_and_samples_are_shared_by_the_environments_of_a_process(kind):
    class Holder(Remembers):
        def __init__(self, tokenizer):
            super().__init__()
            self.tokenizer = tokenizer

    kwargs = make_env_kwargs()
    kwargs["reward_parts"] = [RewardPart("mine", 1.0, Holder(kwargs["end_of_turn"].tokenizer))]
    env = make_vec_env(kwargs, 3, kind, 1)
    try:
        for path in ("tokenizer", "_samples"):
            assert len({id(getattr(e, path)) for e in env.get_attr("env")}) == 1
        for inner in env.get_attr("env"):
            assert inner.reward_parts[0].function.tokenizer is inner.tokenizer
    finally:
        env.close()


# -- faults -----------------------------------------------------------------------------------------------------------


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_all_end(pids, seconds=30):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pids_of(env):
    return [process.pid for process in env.processes]


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")


def test_environment_that_cannot_be_built_is_told_by_number(open_env):
    good, bad = utterance_env_kwargs(), utterance_env_kwargs(samples=[])
    env_fns = [functools.partial(make_utterance_env, kwargs) for kwargs in (good, good, good, bad)]
    with pytest.raises(EnvWorkerError, match=r"environment 3 failed in .* \(process \d+\): DataError: .*sample"):
        open_env(env_fns, 2)


def test_environment_that_raises_is_told_and_its_worker_lives_on(open_env):
    env = open_env([functools.partial(Counter, "raise")] * 4, 2)
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"environment 2 failed in its worker .*: ValueError: not one") as caught:
        env.step(np.array([0, 0, 1, 0]))
    assert "in step" in str(caught.value.__cause__), "the worker's traceback is the cause"
    env.reset()
    assert env.step(np.zeros(4, dtype=int))[0][1].tolist() == [1] * 4
    with pytest.raises(EnvWorkerError, match="cannot pickle"):
        env.env_method("lock")
    with pytest.raises(EnvWorkerError, match=r"environment 1 .*TypeError"):
        env.env_method("add", indices=1)


@needs_proc
@pytest.mark.parametrize(("how", "code"), [("kill", -9), ("exit", 7)])
def test_worker_that_dies_is_told_with_its_exit_code_and_its_environments(open_env, how, code):
    env = open_env([functools.partial(Counter, "exit")] * 5, 2)
    env.reset()
    pids = pids_of(env)
    if how == "kill":
        env.step_async(np.zeros(5, dtype=int))
        os.kill(pids[1], signal.SIGKILL)
    message = rf"worker died: process {pids[1]} with environments 2 to 4, exit code {code}\..*same command continues"
    for _ in range(2):
        with pytest.raises(EnvWorkerError, match=message):
            env.step(np.array([0, 0, 1, 0, 0]))
    env.close()
    assert not any(map(is_running, pids))
    env.close()


class OnlyHere:
    """Cannot be unpickled."""

    def __call__(self, *args):
        return 0.0

    def __reduce__(self):
        return eval, ("1 / 0",)


def test_what_cannot_be_sent_to_a_worker_is_told(open_env, tmp_path):
    (tmp_path / "words.txt").touch()
    with open(tmp_path / "words.txt") as file:
        for held in (threading.Lock(), file):
            kwargs = utterance_env_kwargs(reward_parts=[RewardPart("mine", 1.0, functools.partial(print, held))])
            with pytest.raises(EnvWorkerError, match="the environments cannot be sent"):
                open_env([functools.partial(make_utterance_env, kwargs)], 1)
            for kind in ("blocks", "subproc"):
                with pytest.raises(EnvWorkerError, match=r"reward 'mine' cannot be sent.*cannot pickle"):
                    make_vec_env(kwargs, 1, kind)
    kwargs = utterance_env_kwargs(reward_parts=[RewardPart("mine", 1.0, OnlyHere())])
    with pytest.raises(EnvWorkerError, match=r"environment 0 failed in its worker.*ZeroDivisionError"):
        open_env([functools.partial(make_utterance_env, kwargs)], 1)


@needs_proc
def test_worker_that_does_not_answer_in_time_is_told(monkeypatch):
    monkeypatch.setattr(vectorize, "_STEP_GRACE_S", 0.1)
    env = BlockVecEnv([functools.partial(Counter, "sleep")] * 3, 2, timeout_s=0.2)
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"worker .* of environments 1 to 2 has not answered for 0\.5 s"):
        env.step(np.array([0, 1, 0]))
    env.close()
    assert not any(map(is_running, pids_of(env)))


@needs_proc
def test_closing_ends_also_a_worker_that_hangs(open_env):
    env = open_env([functools.partial(Counter, "sleep")] * 2, 2)
    env.reset()
    env.step_async(np.array([1, 0]))
    env.close()
    assert not any(map(is_running, pids_of(env)))


@needs_proc
def test_closing_needs_no_help_of_a_process_that_holds_the_connections(open_env):
    env = open_env([Counter] * 2, 2)
    handles = [worker.connection.fileno() for worker in env._workers]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=handles) as holder:
        env.close()
        assert holder.poll() is None and not any(map(is_running, pids_of(env)))


@needs_proc
def test_environments_that_are_forgotten_leave_no_process():
    env = BlockVecEnv([Counter] * 2, 2)
    pids = pids_of(env)
    del env
    gc.collect()
    assert_all_end(pids)


# -- a process per environment ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _new_fork_server():
    """One that loads stable-baselines3 once for all workers; without it, each would."""
    forkserver._forkserver._stop()


@pytest.fixture
def open_processes(_new_fork_server):
    opened = []

    def build(*args, **kwargs):
        opened.append(vectorize.subproc_vec_env(*args, **kwargs))
        return opened[-1]

    yield build
    for env in opened:
        env.close()


def test_processes_are_stable_baselines3s_own(open_processes, monkeypatch):
    monkeypatch.setenv("KEY_OF_A_PARTNER", "set")
    kwargs = utterance_env_kwargs(partner=ScriptedPartner(["w1 w2", "w3"]), max_turns=3)
    env_fns = [functools.partial(make_utterance_env, kwargs)] * 3
    envs = [open_processes(env_fns), SubprocVecEnv(env_fns, start_method="fork"), DummyVecEnv(env_fns)]
    try:
        assert type(envs[0]) is SubprocVecEnv
        for env in envs:
            env.seed(11)
        first, *others = [env.reset() for env in envs]
        for other in others:
            assert_same(first, other)
        envs[0].step_async(utterances(np.random.default_rng(1), 3))  # an answer that is forgotten
        rng = np.random.default_rng(0)
        for env in envs:
            env.seed(11)
            env.reset()
        assert (sum(assert_same_steps(envs, utterances(rng, 3)) for _ in range(40)) > 3).all()
        assert_same(*[env.env_method("state_dict", indices=1) for env in envs[::2] if env.reset()])
    finally:
        for env in envs[1:]:
            env.close()
    env = open_processes([Sees] * 2)
    assert env.env_method("variable") == ["set"] * 2 and len(set(env.env_method("here"))) == 2
    assert [kind.__name__ for kind in env.env_method("kind")] == ["Sees"] * 2, "a class that only this file has"
    assert env.env_is_wrapped(Monitor) == [False] * 2 and env.has_attr("here") and not env.has_attr("there")


@needs_proc
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"(?s)environment 1 failed in its worker \(process \d+\): ValueError: not one\. .*dummy .*in step"),
        ("exit", r"worker died: process \d+ with environment 1, exit code 7\..*same command continues"),
        ("sleep", r"the worker \(process \d+\) of environment 1 has not answered for 0\.3 s"),
    ],
)
def test_fault_of_a_process_is_told_with_its_environment(open_processes, monkeypatch, fault, message):
    monkeypatch.setattr(vectorize, "_STEP_GRACE_S", 0.1)
    env = open_processes([functools.partial(Counter, fault)] * 2, timeout_s=0.2 if fault == "sleep" else None)
    env.reset()
    with pytest.raises(EnvWorkerError, match=message):
        env.step(np.array([0, 1]))
    if fault != "sleep":
        with pytest.raises(EnvWorkerError, match=message):
            env.env_method("here")
    env.close()
    assert not any(map(is_running, pids_of(env)))


@needs_proc
def test_process_without_its_environment_or_attribute_is_told_and_leaves_nothing(open_processes):
    both = [utterance_env_kwargs(samples=samples) for samples in (make_samples(), [])]
    env_fns = [functools.partial(make_utterance_env, kwargs) for kwargs in both]
    for fns, at in ((env_fns, 1), (env_fns[::-1], 0)):
        with pytest.raises(EnvWorkerError, match=rf"environment {at} failed in its .*DataError: .*one sample"):
            open_processes(fns)
    env = open_processes([Counter] * 2)
    with pytest.raises(AttributeError, match=r"environment 0 .*'lable'"):
        env.get_attr("lable")
    env = vectorize.subproc_vec_env([functools.partial(Counter, "sleep")] * 2)
    env.reset()
    env.step_async(np.array([1, 0]))
    pids = pids_of(env)
    del env
    gc.collect()
    assert_all_end(pids)


# -- scripts ----------------------------------------------------------------------------------------------------------


# Without a guard of the main module, and with torch: the workers must not run it again.
SCRIPT = """
import sys, time
import torch
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.text.end_of_turn import EndOfTurn
from tiny import make_samples, make_tokenizer

class Mine:
    def __call__(self, previous, action, current, done, meta):
        if HANGS and action == 7:
            time.sleep(600)
        return float("torch" in sys.modules)

tokenizer = make_tokenizer()
env = make_vec_env(
    {"end_of_turn": EndOfTurn(tokenizer, [0]), "samples": make_samples(), "max_prompt_length": 6,
     "reward_parts": [RewardPart("mine", 1.0, Mine())], "max_episode_length": 2, "vocab_size": 20},
    2, "blocks", 2,
)
env.reset()
rewards = env.step([[5, 0]] * 2)[1]
print(*rewards, *(process.pid for process in env.processes), flush=True)
if HANGS:
    env.step_async([[7, 0]] * 2)
"""


@needs_proc
@pytest.mark.parametrize("end", ["kill", pytest.param("exit", marks=pytest.mark.long)])
def test_script_leaves_no_process_however_it_ends(tmp_path, end):
    text = SCRIPT + ("time.sleep(600)\n" if end == "kill" else "")
    (tmp_path / "script.py").write_text(text.replace("HANGS", str(end == "kill")))
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        pids = [int(word) for word in words[2:]]
        assert len(pids) == 2
        assert words[:2] == ["0.0"] * 2
        if end == "kill":
            assert all(map(is_running, pids))
            process.kill()
    assert_all_end(pids)


@pytest.mark.parametrize("vec_env", ["dummy", "blocks"])
def test_each_sample_occurs_once_in_the_environments_of_all_processes(vec_env):
    """Two processes of two environments have 3, 3, 2 and 2 of the 10 samples."""
    kwargs = make_env_kwargs(samples=make_samples(10))

    def build(process):
        env = make_vec_env(kwargs, 2, vec_env, n_workers=2, once_among=(2 * process, 4))
        env.seed(3)
        env.reset()
        return env

    def draw(env, **indices):
        return [info["sample_id"] for _, info in env.env_method("reset", **indices)]

    first, second = build(0), build(1)
    talked_about = [info["sample_id"] for env in (first, second) for info in env.reset_infos] + draw(first)
    states = first.env_method("state_dict")
    last = draw(first)
    for index, state in enumerate(states):  # as when a run goes on
        first.env_method("load_state_dict", state, indices=[index])
    assert draw(first) == last
    talked_about += draw(second) + last
    assert sorted(talked_about) == list(range(10))
    for env in (first, second):
        with pytest.raises((DataError, EnvWorkerError), match=r"env\.args\.once: an environment has talked about all"):
            draw(env)
        env.close()
