from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from tiny import make_samples, make_tokenizer

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs import block_vec_env
from rl4dialog.envs.block_vec_env import BlockVecEnv, worker_count
from rl4dialog.envs.vectorize import make_utterance_env
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

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.n = 0
        return self._observe(), {} if seed is None else {"seed": seed, "options": options}

    def step(self, action: int) -> Any:
        if action == 1 and self.fault == "raise":
            raise ValueError("not one")
        if action == 1 and self.fault == "exit":
            os._exit(7)
        if action == 1 and self.fault == "sleep":
            time.sleep(600)
        if action == 1 and self.fault.startswith("die once, then sleep:"):
            mark = Path(self.fault.partition(":")[2])
            if not mark.exists():
                mark.touch()
                os._exit(7)
            time.sleep(600)
        self.n += 1
        return self._observe(), 1 / 3, self.n == 3, self.n == 3 and bool(action), {"n": self.n}

    def render(self) -> Any:
        return np.full((2, 2, 3), self.n, dtype=np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.n

    def state_dict(self) -> int:
        return self.n

    def load_state_dict(self, state: int) -> None:
        self.n = state

    def _observe(self) -> Any:
        return np.full(2, self.n, dtype=np.float32), self.n


@pytest.fixture
def open_env() -> Iterator[Callable[..., BlockVecEnv]]:
    opened: list[BlockVecEnv] = []

    def build(*args: Any, **kwargs: Any) -> BlockVecEnv:
        opened.append(BlockVecEnv(*args, **kwargs))
        return opened[-1]

    yield build
    for env in opened:
        env.close()


@pytest.fixture
def three(open_env: Callable[..., BlockVecEnv]) -> Iterator[Callable[..., list[VecEnv]]]:
    """The same environments in blocks, in a process each, and in this one."""
    others: list[VecEnv] = []

    def build(env_fns: Sequence[Callable[[], gym.Env]], n_workers: int) -> list[VecEnv]:
        others.extend([SubprocVecEnv(list(env_fns), start_method="fork"), DummyVecEnv(list(env_fns))])
        return [open_env(env_fns, n_workers), *others]

    yield build
    for env in others:
        env.close()


def assert_same(a: Any, b: Any) -> None:
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


def assert_same_steps(envs: list[VecEnv], actions: np.ndarray) -> np.ndarray:
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


def utterance_env_kwargs(**overrides: Any) -> dict[str, Any]:
    tokenizer = make_tokenizer()

    def reward(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
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


def utterances(rng: np.random.Generator, n_envs: int) -> np.ndarray:
    """Some end, some are cut at the limit, and some environments wait."""
    actions = np.full((n_envs, T), -1)
    for row in actions:
        n = rng.integers(0, T + 1)
        row[:n] = rng.integers(3, 20, n)
        if n and (n < T or rng.random() < 0.5):
            row[n - 1] = 0
    return actions


@pytest.mark.parametrize(("n_envs", "n_workers", "seeds"), [(5, 2, [7, 7, 8, 8, 9]), (3, 3, None), (4, 1, None)])
def test_conversations_in_blocks_equal_those_in_a_process_each_and_in_this_one(
    three: Any, n_envs: int, n_workers: int, seeds: list[int] | None
) -> None:
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


def test_time_limits_seeds_and_options_as_stable_baselines3(three: Any) -> None:
    def make_cart_pole() -> gym.Env:
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


def test_plain_ppo_learns_as_in_this_process(open_env: Any) -> None:
    env_fns = [functools.partial(gym.make, "CartPole-v1")] * 3
    found = []
    for env in (open_env(env_fns, 2), DummyVecEnv(list(env_fns))):
        model = PPO("MlpPolicy", env, n_steps=64, batch_size=48, n_epochs=2, seed=1, device="cpu")
        before = {name: weights.clone() for name, weights in model.policy.state_dict().items()}
        model.learn(3 * 64 * 2)
        found.append((model.policy.state_dict(), before))
    for name, weights in found[0][0].items():
        np.testing.assert_array_equal(weights, found[1][0][name])
    assert any((weights != found[0][1][name]).any() for name, weights in found[0][0].items())


def test_attributes_methods_and_wrappers_as_stable_baselines3(three: Any) -> None:
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


def test_every_environment_is_given_an_object_of_its_own(open_env: Any) -> None:
    env = open_env([Counter] * 3, 1)
    env.reset()
    env.set_attr("things", [])
    env._call(lambda env: env.things.append(1), 0)
    assert env.get_attr("things") == [[1], [], []]


def test_reset_forgets_a_step_that_nobody_waited_for(open_env: Any) -> None:
    env = open_env([Counter] * 3, 2)
    env.reset()
    env.step_async(np.zeros(3, dtype=int))
    with pytest.raises(RuntimeError, match="in progress"):
        env.get_attr("n")
    assert env.reset()[1].tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="no step_async"):
        env.step_wait()
    assert env.step(np.zeros(3, dtype=int))[0][1].tolist() == [1, 1, 1]


def test_blocks_and_workers(open_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env = open_env([Counter] * 5, 2)
    pids = env._call(lambda env: os.getpid())
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 3] and pids == sorted(pids, key=pids.index)
    monkeypatch.setattr(block_vec_env.joblib, "cpu_count", lambda: 4)
    assert [worker_count(*args) for args in [(128,), (3,), (128, 16), (4, 16)]] == [4, 3, 16, 4]


def test_worker_imports_neither_torch_nor_stable_baselines3(open_env: Any) -> None:
    env = open_env([functools.partial(make_utterance_env, utterance_env_kwargs())] * 4, 2)
    env.seed(0)
    env.reset()
    env.step(utterances(np.random.default_rng(0), 4))
    env.env_is_wrapped(Monitor)

    def heavy(env: Any) -> list[str]:
        import sys

        return sorted({"torch", "stable_baselines3", "datasets", "pandas"} & sys.modules.keys())

    assert env._call(heavy) == [[]] * 4
    if Path("/proc").is_dir():
        for pid in env.pids:
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads the memory from /proc")
def test_eight_workers_are_small_and_share_the_samples(open_env: Any) -> None:
    from rl4dialog.envs.shared_samples import SharedSamples

    samples = SharedSamples([*make_samples(1), *(s for s in make_samples(2) for _ in range(10))])
    samples._block += bytes(200 * 2**20)
    kwargs = utterance_env_kwargs(samples=samples)
    env = open_env([functools.partial(make_utterance_env, kwargs)] * 16, 8, shared=[samples])
    env.reset()
    env.step(utterances(np.random.default_rng(0), 16))
    for pid in env.pids:
        lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        kilobytes = {line[0]: int(line[1]) for line in lines if line[0].startswith(("Private", "Rss"))}
        assert kilobytes["Rss:"] > 200 * 2**10
        assert kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"] < 120 * 2**10


# -- faults -----------------------------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_all_end(pids: Sequence[int], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_of(env: BlockVecEnv) -> list[int]:
    return [env._server._process.pid, *env.pids]


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")


def test_environment_that_cannot_be_built_is_told_by_number(open_env: Any) -> None:
    good, bad = utterance_env_kwargs(), utterance_env_kwargs(samples=[])
    env_fns = [functools.partial(make_utterance_env, kwargs) for kwargs in (good, good, good, bad)]
    with pytest.raises(
        EnvWorkerError, match=r"environment 3 failed in worker 1 \(process \d+\) .*: DataError: .*sample"
    ):
        open_env(env_fns, 2)


def test_environment_that_raises_is_told_and_its_worker_lives_on(open_env: Any) -> None:
    env = open_env([functools.partial(Counter, "raise")] * 4, 2)
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"environment 2 failed in worker 1 .*: ValueError: not one") as caught:
        env.step(np.array([0, 0, 1, 0]))
    assert "in step" in str(caught.value.__cause__), "the worker's traceback is the cause"
    env.reset()
    assert env.step(np.zeros(4, dtype=int))[0][1].tolist() == [1] * 4
    with pytest.raises(ValueError, match="3 actions for 4"):
        env.step(np.zeros(3, dtype=int))
    with pytest.raises(EnvWorkerError, match="cannot pickle"):
        env._call(lambda env: threading.Lock())
    with pytest.raises(EnvWorkerError, match=r"environment 1 .*TypeError"):
        env.env_method("add", indices=1)


@needs_proc
@pytest.mark.parametrize(("how", "code"), [("kill", -9), ("exit", 7)])
def test_worker_that_dies_is_told_with_its_exit_code_and_its_environments(open_env: Any, how: str, code: int) -> None:
    env = open_env([functools.partial(Counter, "exit")] * 5, 2)
    env.reset()
    pid = env.pids[1]
    if how == "kill":
        env.step_async(np.zeros(5, dtype=int))
        os.kill(pid, signal.SIGKILL)
    message = rf"worker died: worker 1 \(process {pid}\) with environments 2 to 4, exit code {code}\."
    for _ in range(2):
        with pytest.raises(EnvWorkerError, match=message):
            env.step(np.array([0, 0, 1, 0, 0]))
    pids = processes_of(env)
    env.close()
    assert not any(map(is_running, pids))
    env.close()
    with pytest.raises(EnvWorkerError, match="closed"):
        env.reset()


class OnlyHere:
    """Cannot be unpickled."""

    def __call__(self, *args: Any) -> float:
        return 0.0

    def __reduce__(self) -> Any:
        return eval, ("1 / 0",)


def test_what_cannot_be_sent_to_a_worker_is_told(open_env: Any) -> None:
    faults = [(OnlyHere(), r"loaded in worker processes.*ZeroDivisionError"), (threading.Lock(), "cannot be sent")]
    for function, message in faults:
        kwargs = utterance_env_kwargs(reward_parts=[RewardPart("mine", 1.0, function)])
        with pytest.raises(EnvWorkerError, match=message):
            open_env([functools.partial(make_utterance_env, kwargs)], 1)


@needs_proc
def test_worker_that_does_not_answer_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_vec_env, "_GRACE_S", 0.1)
    env = BlockVecEnv([functools.partial(Counter, "sleep")] * 3, 2, max_restarts=3, timeout_s=0.2)
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"worker 1 .* with environments 1 to 2 has not answered for 0\.5 s"):
        env.step(np.array([0, 1, 0]))
    env.close()
    assert not any(map(is_running, env.pids))


def test_replaced_worker_must_answer_in_time_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(block_vec_env, "_GRACE_S", 0.1)
    fault = f"die once, then sleep:{tmp_path / 'died'}"
    env = BlockVecEnv([functools.partial(Counter, fault)], 1, max_restarts=3, timeout_s=0.5)
    env.reset()
    with pytest.raises(EnvWorkerError, match=r"worker 0 .* has not answered for 0\.6 s"):
        env.step(np.array([1]))
    assert env.n_restarts == 1
    env.close()


@needs_proc
def test_closing_ends_also_a_worker_that_hangs(open_env: Any) -> None:
    env = open_env([functools.partial(Counter, "sleep")] * 2, 2)
    env.reset()
    env.step_async(np.array([1, 0]))
    env.close()
    assert not any(map(is_running, processes_of(env)))


@needs_proc
def test_closing_needs_no_help_of_a_process_that_holds_the_connections(open_env: Any) -> None:
    env = open_env([Counter] * 2, 2)
    pids, handles = processes_of(env), [worker.connection.fileno() for worker in env._workers]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=handles) as holder:
        env.close()
        assert holder.poll() is None and not any(map(is_running, pids))


@needs_proc
def test_environments_that_are_forgotten_leave_no_process() -> None:
    env = BlockVecEnv([Counter] * 2, 2)
    pids = env.pids
    del env
    assert_all_end(pids)


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
        return float("torch" in sys.modules)

tokenizer = make_tokenizer()
env = make_vec_env(
    {"end_of_turn": EndOfTurn(tokenizer, [0]), "samples": make_samples(), "max_prompt_length": 6,
     "reward_parts": [RewardPart("mine", 1.0, Mine())], "max_episode_length": 2, "vocab_size": 20},
    4, "blocks", 2,
)
env.reset()
rewards = env.step([[5, 0]] * 4)[1]
print(*rewards, env._server._process.pid, *env.pids, flush=True)
"""


@needs_proc
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_script_leaves_no_process_however_it_ends(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + ("time.sleep(600)\n" if end == "kill" else ""))
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
    command = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        pids = [int(word) for word in words[4:]]
        assert words[:4] == ["0.0"] * 4 and len(pids) == 3
        if end == "kill":
            assert all(map(is_running, pids))
            process.kill()
    assert_all_end(pids)
