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
PAYS_BEFORE_THE_END = ["shortest_path"]
POOL_SIZES = {"comment_reply": [5000, 500, 500]}  # without files, with which it has no such numbers
WRONG_ARGUMENTS = ["datapool comment_reply: reward=rudenes", "datapool random_walks: n_nodes=1 edge_share=0"]
UNTRAINED_POLICIES = {"values": later("make_guided")}
WITH_LEARNING_RATE = [later("make_bc")]
SCRIPTS = ["benchmark_logs"]

BC = {"id": "bc", "policy": {"id": "causal_lm_actor_critic_policy", "args": {"model_name": "builtin/tiny-gpt2"}}}
SECRET = {"alg__policy__args__critic_reads": "secret"}
CONDITIONS_MET = [({}, "error", {"alg": BC, **SECRET}, "critic_reads has no effect with alg")]
MEANINGLESS_NUMBERS = [
    ({}, {"alg": BC, "alg__args__learning_rate": 0}, "learning_rate: input should be greater than 0")
]
SWITCHED = [(["alg.id=ilql"], "is for ppo; alg.id: ilql needs other keys, so start from .*random_walks/llama_ilql.yml")]
