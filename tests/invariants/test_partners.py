"""A conversation is the same wherever its partner is: in a worker, in the process, or in front of the environments."""

import pytest
from covering import quick
from partners import RulesService
from runs import assert_same_run, complete_run, contents, keep_registries, make_config, run_folder, train, trained_run

from rl4dialog.catalog import PartnerRegistry

RULES = {
    "rules": [{"pattern": "[aeiou]", "replies": "oh , why ?"}, {"pattern": "[xyz]", "leaves": True}],
    "otherwise": "i see .",
}
DRAWN = {"id": "rules", "args": {**RULES, "otherwise": ["i see .", "well ?", "and then ?"]}}


def config_of(folder, partner, vec_env="dummy", **overrides):
    """Two iterations of conversations of up to three turns, with rewards that need no references."""
    rewards = [
        {"id": "length_penalty", "args": {"max_length": 1}, "pay": "turn"},
        {"id": "repetition_penalty", "weight": 0.5},
    ]
    settings = {
        "reward_fn": {"id": "composite", "args": {"rewards": rewards}},
        "env__n_envs": 4,
        "env__vec_env": vec_env,
        "env__args__max_prompt_length": 60,
        "env__args__max_episode_length": 8,
        "env__args__max_turns": 3,
        "env__args__partner": partner,
        "train_evaluation__metrics": [{"id": "conversation"}],
        "train_evaluation__max_eval_samples": 3,
        "train_evaluation__save_every": 1,
        **({"env__n_workers": 2} if vec_env == "blocks" else {}),
        **overrides,
    }
    return make_config(folder, **settings)


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    keep_registries(monkeypatch)
    PartnerRegistry.add("rules_service", RulesService)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved tiny model."""
    folder = tmp_path_factory.mktemp("model")
    with complete_run(folder, make_config(folder, train_evaluation__n_iters=0, seed=7)):
        yield str(run_folder(folder) / "model")


def language_model(model):
    """Settings of a partner that opens, and whose utterances may be longer than the agent's."""
    partner = {"id": "language_model", "args": {"model_name": model}}
    return {"partner": partner, "env__args__max_partner_length": 10, "env__args__first_speaker": "partner"}


@pytest.fixture(scope="module")
def run_with_rules(tmp_path_factory):
    """A run with a partner in the workers."""
    folder = tmp_path_factory.mktemp("rules")
    with complete_run(folder, config_of(folder, DRAWN, "blocks")):
        yield run_folder(folder)


@pytest.fixture(scope="module")
def run_with_language_model(tmp_path_factory, model):
    """A run with a partner in the process, where the environments are, too."""
    folder = tmp_path_factory.mktemp("language_model")
    with complete_run(folder, config_of(folder, **language_model(model))):
        yield run_folder(folder)


def said_by_partner(folder):
    """What the partner said in all recorded conversations."""
    files = [found for name, found in contents(folder).items() if name.endswith("predictions.json")]
    turns = [turn for found in files for record in found for turn in record["turns"] if not turn.get("given")]
    assert {turn["speaker"] for turn in turns} == {"agent", "partner"}
    return [turn["text"] for turn in turns if turn["speaker"] == "partner"]


def assert_same_but_for_environments(one, other):
    """Weights, optimizer, logs and predictions are the same; environments with another partner have another state."""
    a, b = contents(one), contents(other)
    assert a.keys() == b.keys() and any(name.endswith("optimizer.safetensors") for name in a)
    assert [name for name in a if a[name] != b[name] and not name.endswith("state.json")] == []


def test_rules_say_the_same_in_workers_and_in_the_process(tmp_path, run_with_rules):
    assert_same_run(run_with_rules, trained_run(tmp_path, config_of(tmp_path, DRAWN)))
    assert len(set(said_by_partner(run_with_rules))) > 2


def test_rules_say_the_same_as_a_service(tmp_path):
    folders = alone, service = tmp_path / "alone", tmp_path / "service"
    for folder, id in zip(folders, ("rules", "rules_service"), strict=True):
        config = config_of(folder, {"id": id, "args": RULES}, train_evaluation__n_iters=1)
        assert train(folder, config) == 0
    assert_same_but_for_environments(run_folder(alone), run_folder(service))
    assert set(said_by_partner(run_folder(service))) == {"oh , why ?", "i see ."}


def test_language_model_says_the_same_wherever_the_environments_are(tmp_path, model, run_with_language_model):
    assert train(tmp_path, config_of(tmp_path, vec_env="blocks", **language_model(model))) == 0
    assert_same_run(run_folder(tmp_path), run_with_language_model)
    assert len(set(said_by_partner(run_with_language_model))) > 10


@pytest.mark.parametrize("id", quick("rules", of=["rules", "language_model"]))
def test_run_with_a_partner_that_is_given_more_iterations_is_the_longer_run(tmp_path, model, id, request):
    settings = {"partner": DRAWN} if id == "rules" else language_model(model)
    short, long = (config_of(tmp_path, **settings, train_evaluation__n_iters=n) for n in (1, 2))
    assert train(tmp_path, short) == 0
    assert_same_run(request.getfixturevalue(f"run_with_{id}"), trained_run(tmp_path, long, "--resume"))


def several(*partners, **args):
    return {"id": "several", "args": {"partners": [*partners], **args}}


def test_several_equal_partners_are_one(tmp_path, run_with_rules):
    """Each in half of the conversations, with the same seeds; only records and metrics name them."""
    both = several({**DRAWN, "name": "a"}, {**DRAWN, "name": "b"})
    one, other = contents(run_with_rules), contents(trained_run(tmp_path, config_of(tmp_path, both)))
    weights = [name for name in one if name.endswith(".safetensors")]
    assert weights and all(one[name] == other[name] for name in weights)
    (records,) = (found for name, found in other.items() if name.endswith("epoch_2_test_split_predictions.json"))
    named = [record.pop("partner") for record in records]
    assert records == one["epoch_2_test_split_predictions.json"] and {*named} <= {"a", "b"}
    metrics = other["test_split_metrics.jsonl"][-1]["metrics"]
    for name in set(named):
        turns = [record["conversation/turns"] for record, own in zip(records, named, strict=True) if own == name]
        assert metrics[f"conversation/turns/{name}"] == pytest.approx(sum(turns) / len(turns))


def test_partners_in_workers_and_in_the_main_process_are_one_of_several(tmp_path, model):
    own = language_model(model)
    opening = {**DRAWN, "args": {**DRAWN["args"], "opening": "hello ."}}
    own["partner"] = several(opening, {**own["partner"], "name": "from_people"}, weights=[1, 2])
    folder = trained_run(tmp_path, config_of(tmp_path, vec_env="blocks", **own, train_evaluation__max_eval_samples=6))
    records = contents(folder)["epoch_2_test_split_predictions.json"]
    assert {record["partner"] for record in records} == {"rules", "from_people"}
    for record in records:
        assert (record["turns"][0]["text"] == "hello .") == (record["partner"] == "rules")
    assert any("rollout/task_reward/from_people" in each for each in map(str, contents(folder).values()))
