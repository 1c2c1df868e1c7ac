"""Rows of this feature in tables of tests about all components."""

from rl4dialog.core.registry import import_object


def later(name):
    """Call an object of the tests that loads the feature, imported when it is called: many tests read these tables."""
    return lambda *args, **kwargs: import_object(f"tests.offline:{name}")(*args, **kwargs)


METRIC_KEYS = {
    "rudeness": {f"rudeness/{name}" for name in ("level", "polite", "mild", "strong")},
    "shortest_path": {f"shortest_path/{name}" for name in ("return", "optimality", "reached", "illegal")},
}
SAME_AS_METRIC = {"shortest_path": ("shortest_path", "shortest_path/return")}
OTHER_REWARDS = ["rudeness"]
PAYS_BEFORE_THE_END = ["shortest_path"]
GENERATED_POOLS = {"comment_reply": [5000, 500, 500], "random_walks": [1000, 100, 100]}
WRONG_ARGUMENTS = ["datapool comment_reply: reward=rudenes", "datapool random_walks: n_nodes=1 edge_share=0"]
UNTRAINED_POLICIES = {"values": later("make_guided")}
WITH_LEARNING_RATE = [later("make_bc")]
SCRIPTS = ["benchmark_logs"]

BC = {"id": "bc", "policy": {"id": "causal_lm_actor_critic_policy", "args": {"model_name": "builtin/tiny-gpt2"}}}
SECRET = {"alg__policy__args__critic_reads": "secret"}
CONDITIONS_MET = [({}, "error", {"alg": BC, **SECRET}, "critic_reads has no effect with alg")]
MEANINGLESS_NUMBERS = [
    ({}, {"alg": BC, "alg__args__learning_rate": 0}, "learning_rate: input should be greater than 0"),
]
SWITCHED = [
    (["alg.id=ilql"], "is for ppo; alg.id: ilql needs other keys, so start from .*random_walks/llama_ilql.yml"),
]

ILQL = """
    cd scripts/train/wordle
    python train_bc.py train.bsize=64
    python train_iql.py train.bsize=64 model.alpha=0.005 model.tau=0.8
    python ../../eval/wordle/eval_policy.py
"""
ILQL_PORT = """
    rl4dialog train --config_path task_configs/wordle/llama_bc.yml --experiment_name bc GAMES
    rl4dialog train --config_path task_configs/wordle/llama_ilql.yml --experiment_name ilql --set alg.args.tau=0.8 GAMES
    rl4dialog evaluate --run rl4dialog_exps/ilql --output_path evaluated
"""
PORTS = {"ilql": (ILQL, ILQL_PORT)}
