"""A config and classes written for RL4LMs run; only model names and the path of the data are other ones."""

import json
from pathlib import Path

import pytest
from runs import SHORT, changed, lines, make_config, run_folder, trained_run, write_dialogues
from stand_ins import bert_config, bert_folder, bert_tokenizer  # noqa: F401 (fixtures)

from rl4dialog.core.yaml_loader import load_yaml

GENERATION = {"do_sample": True, "top_k": 20, "min_length": 2, "max_new_tokens": 20}


def dialog_config(data, bert):
    """A dialog config of RL4LMs' schema with PPO, three variants of the reward, and most of RL4LMs' metrics."""
    coefficients = [(0.5, 0.5), (0.25, 0.75), (0.75, 0.25)]
    # METEOR without synonyms: WordNet is a download, which this test does without.
    rewards = [
        {"id": "intent_accuracy", "args": {"intent_coeff": intent, "auto_coeff": auto, "synonyms": False}}
        for intent, auto in coefficients
    ]
    policy_args = {"model_name": "builtin/tiny-gpt2", "apply_model_parallel": True, "generation_kwargs": GENERATION}
    metrics = {
        "intent_accuracy": {},
        "causal_perplexity": {"tokenizer_id": "builtin/tiny-gpt2", "stride": 128, "model_type": "causal"},
        "diversity": {},
        "meteor": {"synonyms": False},
        "rouge": {},
        "bleu": {},
        "bert_score": {"language": "en", "model_type": bert, "num_layers": 1},
        "sacre_bleu": {"tokenize": "intl"},
    }
    changes = {
        "tokenizer.model_name": "builtin/tiny-gpt2",
        "reward_fn.values": rewards,
        "datapool.args": {"context_size": 2, "path": str(data)},
        "env.n_envs": 2,
        "alg.id": "ppo",
        "alg.policy": {"id": "causal_lm_actor_critic_policy", "args": policy_args},
        "train_evaluation.n_iters": 1,
        "train_evaluation.metrics": [{"id": id, "args": args} for id, args in metrics.items()],
        "train_evaluation.generation_kwargs": GENERATION,
    }
    return changed(load_yaml(Path(__file__).parent / "rl4lms_configs" / "dialog_gpt2_nlpo.yml"), changes)


def test_dialog_config_runs(tmp_path, bert_folder, capsys):  # noqa: F811
    config = dialog_config(write_dialogues(tmp_path / "data"), bert_folder)
    folder = trained_run(tmp_path, config, "--variant", "2")
    resolved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert resolved["reward_fn"]["args"]["intent_coeff"] == 0.75
    metrics = lines(folder / "test_split_metrics.jsonl")[-1]["metrics"]
    assert {
        "intent/accuracy",
        "fluency_metrics/perplexity",
        "lexical/rouge_rouge1",
        "lexical/bleu",
        "lexical/sacrebleu",
        "semantic/bert_score",
        "diversity_metrics/entropy-2",
    } <= metrics.keys()
    trivial = json.loads((folder / "test_split_players.json").read_text(encoding="utf-8"))
    assert list(trivial) == ["random reference", "constant reply"] and trivial["constant reply"]["lexical/bleu"] < 1
    assert "<th>constant reply</th>" in (folder / "report.html").read_text(encoding="utf-8")
    notes = capsys.readouterr().err
    assert "3 variants" in notes and "apply_model_parallel has no effect" in notes


def test_classes_written_for_rl4lms_work_by_changing_the_import(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rl4dialog import BatchedRewardFunction, Observation, RewardFunction, RewardFunctionRegistry\n"
        "class StepReward(RewardFunction):\n"
        "    def __init__(self, bonus=1.0):\n"
        "        super().__init__()\n"
        "        self.bonus = bonus\n"
        "    def __call__(self, prev_observation: Observation, action: int, current_observation: Observation,\n"
        "                 done: bool, meta_info=None) -> float:\n"
        "        if not done:\n"
        "            return 0\n"
        "        references = [current_observation.target_or_reference_texts]\n"
        "        prompt = current_observation.prompt_or_input_text\n"
        "        return self.bonus * (len(current_observation.context_text) > 0) + 0 * len(references) * len(prompt)\n"
        "class BatchReward(BatchedRewardFunction):\n"
        "    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):\n"
        "        return [float(done) for done in dones]\n"
        "RewardFunctionRegistry.add('step_reward', StepReward)\n"
        "RewardFunctionRegistry.add('batch_reward', BatchReward)\n",
        encoding="utf-8",
    )
    config = make_config(tmp_path, **SHORT, imports=["./mine.py"])
    for reward in ({"id": "step_reward", "args": {"bonus": 2.0}}, {"id": "batch_reward"}):
        config["reward_fn"] = reward
        (info,) = lines(trained_run(tmp_path, config, "--overwrite") / "rollout_info.jsonl")
        assert info["rollout/task_reward"] == pytest.approx(reward.get("args", {}).get("bonus", 1.0), abs=0.2)


def test_building_blocks_in_the_form_of_rl4lms_readme_work(tmp_path):
    (tmp_path / "blocks.py").write_text(
        "from rl4dialog import (\n"
        "    BaseMetric, DataPoolRegistry, MetricRegistry, RewardFunction, RewardFunctionRegistry, Sample,\n"
        "    TextGenPool,\n"
        ")\n"
        "class MyPool(TextGenPool):\n"
        "    @classmethod\n"
        "    def prepare(cls, split: str):\n"
        "        return cls([Sample(id=f'{split}_{i}', prompt_or_input_text=f'tell me {i}', references=['all right'])\n"
        "                    for i in range(6)])\n"
        "class MyReward(RewardFunction):\n"
        "    def __init__(self, *args) -> None:\n"
        "        super().__init__()\n"
        "    def __call__(self, prev_observation, action, current_observation, done, meta_info=None):\n"
        "        if done:\n"
        "            n_prompt = int(current_observation.prompt_or_input_attention_mask_pt.sum())\n"
        "            n_both = int(current_observation.input_attention_mask_pt.sum())\n"
        "            return float(n_both - n_prompt == len(current_observation.action_history))\n"
        "        return 0\n"
        "class MyMetric(BaseMetric):\n"
        "    def __init__(self) -> None:\n"
        "        super().__init__()\n"
        "    def compute(self, prompt_texts, generated_texts, reference_texts, meta_infos=None, model=None,\n"
        "                split_name=None):\n"
        "        return {'custom_metrics/my_metric': ([0.5] * len(generated_texts), 0.7)}\n"
        "DataPoolRegistry.add('my_pool', MyPool)\n"
        "RewardFunctionRegistry.add('my_reward', MyReward)\n"
        "MetricRegistry.add('my_metric', MyMetric)\n",
        encoding="utf-8",
    )
    config = make_config(tmp_path, **SHORT, imports=["./blocks.py"], reward_fn={"id": "my_reward"})
    config["datapool"], config["train_evaluation"]["metrics"] = {"id": "my_pool"}, [{"id": "my_metric"}]
    (info,) = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")
    assert info["rollout/task_reward"] == 1.0
    metrics = lines(run_folder(tmp_path) / "test_split_metrics.jsonl")[-1]["metrics"]
    assert metrics["custom_metrics/my_metric"] == 0.7


def test_algorithm_and_policy_in_the_form_of_rl4lms_readme_train(tmp_path):
    (tmp_path / "own_parts.py").write_text(
        "from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm\n"
        "from rl4dialog import AlgorithmRegistry, PolicyRegistry\n"
        "from rl4dialog.policies.causal import CausalLMActorCriticPolicy\n"
        "class MyPolicy(CausalLMActorCriticPolicy):\n"
        "    n_evaluated = 0\n"
        "    def evaluate_actions(self, obs, actions):\n"
        "        evaluated = super().evaluate_actions(obs, actions)\n"
        "        MyPolicy.n_evaluated += len(evaluated.log_prob)\n"
        "        return evaluated\n"
        "class MyOnPolicyAlgorithm(OnPolicyAlgorithm):\n"
        "    def __init__(self, policy, env, n_epochs=2, batch_size=8, **args):\n"
        "        fixed = {'gamma': 1.0, 'gae_lambda': 1.0, 'ent_coef': 0.0, 'vf_coef': 0.5, 'max_grad_norm': 1.0}\n"
        "        super().__init__(policy, env, use_sde=False, sde_sample_freq=-1, **fixed, **args)\n"
        "        self.n_epochs, self.batch_size = n_epochs, batch_size\n"
        "    def train(self) -> None:\n"
        "        n_advantages = 0\n"
        "        for epoch in range(self.n_epochs):\n"
        "            for rollout_data in self.rollout_buffer.get(self.batch_size):\n"
        "                values, log_prob, entropy = self.policy.evaluate_actions(\n"
        "                    rollout_data.observations, rollout_data.actions)\n"
        "                loss = -(rollout_data.advantages * log_prob).mean()\n"
        "                self.policy.optimizer.zero_grad()\n"
        "                loss.backward()\n"
        "                self.policy.optimizer.step()\n"
        "                n_advantages += len(rollout_data.advantages)\n"
        "        self.logger.record('train/n_advantages', n_advantages)\n"
        "        self.logger.record('train/n_evaluated', MyPolicy.n_evaluated)\n"
        "AlgorithmRegistry.add('my_algorithm', MyOnPolicyAlgorithm)\n"
        "PolicyRegistry.add('my_policy', MyPolicy)\n",
        encoding="utf-8",
    )
    reward = {"id": "length_penalty", "args": {"min_length": 8}}  # differs from reply to reply
    config = make_config(tmp_path, imports=["./own_parts.py"], reward_fn=reward)
    config["alg"] |= {
        "id": "my_algorithm",
        "args": {"n_steps": 16, "n_epochs": 3, "batch_size": 8, "learning_rate": 1e-3},
    }
    config["alg"]["policy"]["id"] = "my_policy"
    folder = trained_run(tmp_path, config)
    rollouts, updates = (lines(folder / f"{name}_info.jsonl") for name in ("rollout", "training"))
    assert updates[0]["train/n_advantages"] == 3 * rollouts[0]["rollout/tokens"] == updates[0]["train/n_evaluated"]
    assert abs(rollouts[0]["rollout/kl"]) < 1e-4 < abs(rollouts[1]["rollout/kl"]), "the policy has moved"
