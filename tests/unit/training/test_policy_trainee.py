"""State of a policy's training, and the critic of another run as the initial one."""

import json
import shutil

import pytest
import torch
from collected import make
from runs import DENSE_REWARD, complete_run, make_config, run_folder, train
from safetensors.torch import load_file

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.features import Feature
from rl4dialog.core.files import write_manifest
from rl4dialog.training import assembly, policy_trainee
from rl4dialog.training.callbacks.base import FeatureCallback
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.plan import print_plan
from rl4dialog.training.policy_trainee import OnPolicyTrainee

CRITIC = {
    "reward_fn": DENSE_REWARD,
    "train_evaluation__n_iters": 1,
    "alg__args__critic_warmup_iters": 1,
    "alg__policy__args__critic": "shared",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that trains only the critic."""
    folder = tmp_path_factory.mktemp("critic")
    with complete_run(folder, make_config(folder, **CRITIC)):
        yield folder


def trainee(folder, critic_from, **overrides):
    settings = {"alg__policy__args__critic": "shared", "alg__policy__args__critic_from": str(critic_from), **overrides}
    config = parse_config(make_config(folder, **settings), "test")
    return OnPolicyTrainee(config, None)


def test_run_starts_with_the_critic_of_the_other(folder):
    found = trainee(folder, run_folder(folder))
    (saved,) = [load_file(path) for path in (run_folder(folder) / "checkpoints").glob("*_000001/critic.safetensors")]
    head = found.algorithm.policy._value_head.output
    assert saved["_value_head.output.weight"].abs().max() > 0
    for name, parameter in head.named_parameters():
        assert torch.equal(parameter, saved[f"_value_head.output.{name}"])
    found.close()


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"seed": 1}, ConfigError, "began with another model. A shared critic is only a head"),
        ({"tokenizer__vocab_size": 280}, ConfigError, "was trained with another tokenizer"),
        (
            {"alg__policy__args__critic": "separate", "alg__policy__args__critic_reads": "secret"},
            ConfigError,
            "was trained with alg.policy.args.critic_reads: history; set the same",
        ),
        ({"alg__policy__args__critic": "separate"}, ModelError, "does not fit a policy with critic 'separate'"),
    ],
)
def test_critic_that_does_not_fit_is_refused(folder, overrides, error, words):
    with pytest.raises(error, match=words):
        trainee(folder, run_folder(folder), **overrides)


def plan(folder, critic_from):
    """The dry run of a run that starts with the critic of another."""
    print_plan(parse_config(make_config(folder, alg__policy__args__critic_from=str(critic_from)), "test"))


@pytest.mark.parametrize("build", [trainee, plan])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "has no checkpoint; name the folder of a run"),
        ("none", "is not a folder that can be read: No such file or directory"),
        ("config.yml", "is not a folder that can be read: Not a directory"),
    ],
)
def test_folder_without_a_critic_is_refused_before_anything_is_built(folder, tmp_path, monkeypatch, build, name, words):
    (tmp_path / "config.yml").touch()
    monkeypatch.setattr(assembly, "build_run_tokenizer", lambda config: pytest.fail("the data were loaded"))
    with pytest.raises(ConfigError, match=rf"critic_from: {tmp_path / name} {words}"):
        build(folder, tmp_path / name)


@pytest.mark.parametrize("damaged", ["critic.safetensors", "manifest.json"])
def test_damaged_newest_checkpoint_is_not_replaced_by_an_older_one(folder, tmp_path, damaged):
    (saved,) = (run_folder(folder) / "checkpoints").glob("*_000001")
    for name in ("iteration_000001", "iteration_000002"):
        shutil.copytree(saved, tmp_path / "checkpoints" / name)
    (tmp_path / "checkpoints" / "iteration_000002" / damaged).write_text("x")
    with pytest.raises(ConfigError, match=r"critic_from: .*iteration_000002 is damaged: .*remove it to use"):
        trainee(folder, tmp_path)


def test_checkpoint_without_a_critic_and_an_empty_name_are_refused(folder, tmp_path):
    checkpoint = tmp_path / "checkpoints" / "iteration_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"iteration": 1}')
    write_manifest(checkpoint)
    with pytest.raises(ConfigError, match=r"has no critic; name the folder of a run"):
        trainee(folder, tmp_path)
    with pytest.raises(ConfigError, match=r"critic_from: string should have at least 1 character"):
        plan(folder, "")


def test_dry_run_names_the_initial_critic(folder, capsys):
    plan(folder, run_folder(folder))
    assert "initial critic" in (printed := capsys.readouterr().out) and "of iteration 1 in" in printed


def make_algorithm():
    built = make(batch_size=16)
    built._setup_learn(16)
    return built


def trainee_of(algorithm):
    trainee = OnPolicyTrainee.__new__(OnPolicyTrainee)
    trainee.algorithm, trainee._reference_hash = algorithm, "the hash"
    return trainee


def test_steps_that_were_left_out_in_a_row_are_remembered(tmp_path, monkeypatch):
    for name in ("load_policy_weights", "load_optimizer"):
        monkeypatch.setattr(policy_trainee.saving, name, lambda *_: None)
    stopped, resumed = make_algorithm(), make_algorithm()
    stopped.step_guard.n_in_a_row = 7
    state = json.loads(json.dumps(trainee_of(stopped).capture_state()))
    trainee_of(resumed).restore(Checkpoint(tmp_path, state))
    assert resumed.step_guard.n_in_a_row == 7


class Accompanying(FeatureCallback):
    """Keeps what it sees of a run."""

    def __init__(self, trainee, folder):
        super().__init__()
        self.seen = [type(trainee).__name__, type(folder).__name__]

    def check_start(self, predictions):
        self.seen.append(len(predictions))

    def _act(self):
        self.seen.append((self.iteration, "train/loss" in self.logger.name_to_value))

    @property
    def summary(self):
        return f"seen: {self.seen}"


def test_callback_of_a_feature_accompanies_a_run(tmp_path, monkeypatch, capsys):
    named = {"one": Feature("what accompanies", callbacks=[f"{__name__}:Accompanying"]), "other": Feature("nothing")}
    monkeypatch.setattr(policy_trainee, "features", lambda: named)
    assert train(tmp_path, make_config(tmp_path, train_evaluation__n_iters=2)) == 0
    seen = ["OnPolicyTrainee", "RunFolder", 6, (0, False), (1, True), (2, True)]
    assert f"seen: {seen}\n" in capsys.readouterr().out
