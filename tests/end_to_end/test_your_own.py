"""The files of the pages "your own" work with the YAML that stands beside them."""

import pickle

import numpy as np
import pytest
from pages import EXAMPLES, blocks, yaml_of
from runs import SHORT, lines, make_config, run_folder, trained_run

from rl4dialog.catalog import AlgorithmRegistry, MetricRegistry, PartnerRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.partner_replies import checked_reply
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, PartnerReply, Turn
from rl4dialog.functional.advantages import Episodes
from rl4dialog.rollouts.buffer import build_estimator


def imports_of(*names):
    return [str(EXAMPLES / f"{name}.py") for name in names]


def test_rewards_metric_and_datapool_train_together(tmp_path):
    starts_with = yaml_of("docs/your_own/reward.md", "imports: [./my_reward")["reward_fn"]
    trl = yaml_of("docs/coming_from/trl.md")["reward_fn"]
    metrics = yaml_of("docs/your_own/metric.md", "imports: [./my_m")["train_evaluation"]["metrics"]
    config = make_config(
        tmp_path,
        **{**SHORT, "train_evaluation__metrics": metrics},
        imports=imports_of("my_reward", "trl_reward", "my_metric", "my_datapool"),
        datapool=yaml_of("docs/your_own/datapool.md", "imports: [./my_datapool")["datapool"],
        reward_fn={"id": "composite", "args": {"rewards": [starts_with, {"id": "new_words"}, trl]}},
    )
    info = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")[0]
    # Words are new as they are written: their number is what adds up.
    assert 0 < info["rollout/reward/new_words"] <= 10
    assert {"rollout/reward/starts_with", "rollout/reward/trl"} <= info.keys()
    assert "style/questions" in lines(run_folder(tmp_path) / "test_split_metrics.jsonl")[0]["metrics"]


def test_policy_and_algorithm_train_together(tmp_path):
    algorithm = yaml_of("docs/your_own/algorithm.md", "imports: [./my_algorithm")["alg"]
    algorithm["args"].update(n_steps=16, learning_rate=1e-3)
    algorithm["policy"] = yaml_of("docs/your_own/policy.md")["alg"]["policy"]
    reward = {"id": "length_penalty", "args": {"min_length": 8}}  # differs from reply to reply from the start
    imports = imports_of("my_policy", "my_algorithm")
    config = make_config(tmp_path, imports=imports, alg=algorithm, reward_fn=reward)
    config["train_evaluation"].update(save_every=1)
    folder = trained_run(tmp_path, config)
    kls = [line["rollout/kl"] for line in lines(folder / "rollout_info.jsonl")]
    assert abs(kls[0]) < 1e-4 < abs(kls[1]), "the policy has moved"
    assert "train/policy_gradient_loss" in lines(folder / "training_info.jsonl")[0]
    from safetensors import safe_open

    with safe_open(folder / "checkpoints" / "iteration_000002" / "critic.safetensors", "pt") as critic:
        assert any(critic.get_tensor(name).shape == (32, 64) for name in critic.keys())  # noqa: SIM118


def test_advantage_estimator_trains_by_its_id(tmp_path):
    args = yaml_of("docs/your_own/algorithm.md", "imports: [./my_estimator")["alg"]["args"]
    config = make_config(
        tmp_path,
        **SHORT,
        imports=imports_of("my_estimator"),
        datapool={"id": "guess_what", "args": {"n_train": 20, "n_val": 4, "n_test": 4}},
        reward_fn={"id": "outcome", "args": {"weights": {"success": 1.0}}},
    )
    config["alg"]["args"].update(args)
    config["env"]["args"].update(max_prompt_length=64, max_turns=3, partner={"id": "guess_what"})
    assert len(lines(trained_run(tmp_path, config) / "rollout_info.jsonl")) == SHORT["train_evaluation__n_iters"]


def test_advantage_estimator_gets_the_factors_that_it_names_and_arguments_of_its_own():
    load_imports(imports_of("my_estimator"), EXAMPLES)
    credit = {"id": "discounted_turns", "args": {"least": 0.75}}
    ones = np.ones((1, 3), dtype=np.float32)
    episode = Episodes(ones, 0 * ones, ones, 0 * ones, np.array([[0.0, 1.0, 2.0]]), ones > 0, np.zeros(1))
    found = build_estimator(credit, gamma=0.5, gae_lambda=0.5, turn_gamma=0.8, turn_gae_lambda=1.0)(episode)
    # Rewards to go are 1 + .8 + .64, 1 + .8 and 1; the turns weigh 1, .8 and .75.
    assert found.advantages[0].tolist() == pytest.approx([2.44, 1.44, 0.75])
    for wrong, message in (
        ({"id": "discounted_turns", "args": {"lowest": 1.0}}, r"alg\.args\.credit\.args\.lowest.*accepted: least"),
        ("discounted_turn", r"alg\.args\.credit.*did you mean 'discounted_turns'"),
        ({"args": {}}, r"alg\.args\.credit.*must be an id"),
    ):
        with pytest.raises(ConfigError, match=message):
            AlgorithmRegistry.check("ppo", {"credit": wrong}, "alg.args")


def test_rewards_and_metric_of_conversations_train_together(tmp_path):
    rewards = yaml_of("docs/your_own/reward.md", "imports: [./my_conversation")["reward_fn"]
    of_page = yaml_of("docs/conversations.md", "imports:")["reward_fn"]["args"]["rewards"]
    rewards["args"]["rewards"] += [block for block in of_page if block["id"] != "asked_before"]
    metrics = yaml_of("docs/your_own/metric.md", "imports: [./my_conv")["train_evaluation"]["metrics"]
    config = make_config(
        tmp_path,
        imports=imports_of("my_conversation_reward", "my_conversation_metric"),
        datapool={"id": "guess_what", "args": {"n_train": 20, "n_val": 4, "n_test": 4}},
        reward_fn=rewards,
        train_evaluation__metrics=metrics,
        train_evaluation__n_iters=1,
    )
    config["env"]["args"].update(max_prompt_length=64, max_turns=3, partner={"id": "guess_what"})
    (info,) = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")
    named = {"outcome", "repetition_penalty", "asked_before", "shared_success"}
    assert {f"rollout/reward/{name}" for name in named} <= info.keys()
    measured = lines(run_folder(tmp_path) / "test_split_metrics.jsonl")[0]["metrics"]
    assert 0 <= measured["answers/yes"] <= 1 and measured["conversation/turns"] == 3


def test_rewards_and_metric_of_conversations_read_the_dialogue():
    load_imports(imports_of("my_conversation_reward", "my_conversation_metric"), EXAMPLES)
    asked_before = RewardFunctionRegistry.get("asked_before", {"penalty": 0.2})
    opening, fly, no = Turn("guess", PARTNER), Turn("can it fly ?", AGENT), Turn("no", PARTNER)
    once = Dialogue(0, (opening, fly, no), n_given=1)
    assert asked_before(once, False) == 0
    twice = Dialogue(0, (opening, fly, no, fly, Turn("yes , it is a bee !", PARTNER)), None, {}, 1, {"success": 1.0})
    assert asked_before(twice, True) == -0.2
    assert RewardFunctionRegistry.get("shared_success", {})([once, twice], [False, True]) == [0.0, [0.5, 0.5]]
    assert MetricRegistry.get("answered_yes", {}).compute([once, twice]) == {"answers/yes": ([0.0, 0.5], 0.25)}


def partner_of_page(first_key):
    """A partner of the page, as it is built from the YAML."""
    block = yaml_of("docs/your_own/partner.md", first_key)["env"]["args"]["partner"]
    PartnerRegistry.check(block["id"], block["args"], "env.args.partner.args")
    return PartnerRegistry.get(block["id"], block["args"])


def test_partner_pays_for_what_it_wants_and_leaves():
    load_imports(imports_of("my_partner"), EXAMPLES)
    guest = partner_of_page("imports:")
    assert guest.can_open and guest.pays
    wishes = set()
    for seed in range(20):
        copied = pickle.loads(pickle.dumps(guest))
        copied.reset({}, seed)
        history = [copied.open(), "hello ! tea coffee juice ?"]
        assert checked_reply(copied.reply(history), "guest") == PartnerReply("no , something else .", reward=-0.1)
        assert checked_reply(copied.reply(["well"]), "guest") == PartnerReply("what do you have ?")
        assert copied.outcome() == {"success": 0.0} and copied.outcome().keys() == set(guest.outcomes)
        answers = {drink: copied.reply([*history, f"{drink} ?"]) for drink in ("tea", "coffee", "juice")}
        (wish,) = [drink for drink, answer in answers.items() if answer.leaves]
        assert answers[wish] == PartnerReply(f"{wish}, yes please !", reward=1.0, leaves=True)
        assert copied.outcome() == {"success": 1.0}
        wishes.add(wish)
    assert wishes == {"tea", "coffee", "juice"}, "the seed decides"


def test_rules_of_the_partner_page_answer():
    rules = partner_of_page("env:")
    rules.reset({}, 0)
    assert rules.reply(["Bye !"]) == PartnerReply("see you !", leaves=True)
    assert rules.reply(["well, I love tea ."]).text in ("why tea ?", "do you really love tea ?")
    assert rules.reply(["maybe ."]) == PartnerReply("go on .")


def test_partner_can_be_talked_to_in_python(monkeypatch, capsys):
    monkeypatch.setattr(PartnerRegistry, "_entries", dict(PartnerRegistry._entries))
    monkeypatch.syspath_prepend(EXAMPLES)
    exec(blocks("docs/your_own/partner.md", "python")[-1], {})
    printed = capsys.readouterr().out
    assert printed.startswith("hello ! i am thirsty . PartnerReply(") and "success" in printed
