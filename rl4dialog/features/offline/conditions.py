"""Settings of offline runs that cannot do what they are for, as in the core's table of conditions."""

from __future__ import annotations

from typing import Any

from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.training.building.policy import algorithm_class, evaluation_kwargs, own_policy_args, policy_class
from rl4dialog.training.building.settings import Row, Settings
from rl4dialog.training.building.switching import OF_PPO


class OfflineSettings(Settings):
    """What conditions of offline runs read."""

    given: dict[str, Any]  # arguments of the algorithm in the config
    batch_size: int
    target_return: float
    decimals: int
    reads_returns: bool
    learns_v: bool
    reranked: bool
    cql_weight: float
    backup: str
    imitation: str
    imitation_beta: float
    policy_weight: float
    polyak_rate: float
    value_min: float
    value_max: float
    reward_scale: float
    fixed_argument: str
    n_candidates: int
    is_greedy: bool
    evaluation_block: str


# fmt: off
CONDITIONS: dict[str, tuple[Row[OfflineSettings], ...]] = {
    "error": (
        (lambda s: s.fixed_argument,
         "alg.policy.args.{fixed_argument} has no effect with alg.id: {alg_id}; remove it"),
        (lambda s: s.critic_from,
         "alg.policy.args.critic_from has no meaning with alg.id: {alg_id}; remove it"),
        (lambda s: s.warm_start and s.reads_returns,
         "warm_start imitates all references behind one return, alg.id: {alg_id} each behind its own; remove it"),
        (lambda s: s.batch_size > s.n_steps,
         "alg.args.batch_size is {batch_size} agent tokens, but an iteration has only {n_steps}"),
        (lambda s: s.alg_id == "filtered_bc"
            and (s.given.get("top_share") is None) == (s.given.get("min_return") is None),
         "alg.id: filtered_bc needs one of alg.args.top_share and alg.args.min_return"),
        (lambda s: round(s.target_return, s.decimals) != s.target_return,
         "alg.args.target_return is {target_return:g}, which cannot be written with alg.args.decimals: {decimals}; "
         "raise decimals, or round it"),
        (lambda s: s.reranked and s.given.get("discount_per") == "token",
         "alg.args.discount_per: token has no meaning with values of whole replies; set it to turn, or remove it"),
        (lambda s: "v_weight" in s.given and not s.learns_v,
         "alg.args.v_weight has no effect, because this algorithm learns no V; remove it"),
        (lambda s: s.alg_id == "chai" and "policy_weight" in s.given,
         "alg.args.policy_weight has no effect, because chai trains no language model; remove it"),
        (lambda s: "cql_temperature" in s.given and not s.cql_weight,
         "alg.args.cql_temperature has no effect without alg.args.cql_weight"),
        (lambda s: s.reranked and s.cql_weight and s.alg_id != "chai",
         "alg.args.cql_weight: the penalty is a sum over all actions, too many if they are whole replies; set it to 0, "
         "or use alg.id: chai"),
        (lambda s: s.reranked and s.backup == "max",
         "alg.args.backup: max is a maximum over all actions, which are too many if they are whole replies; set it to "
         "data, or use alg.id: chai"),
        (lambda s: s.reranked and s.imitation != "all",
         "alg.args.imitation: {imitation} weighs tokens, but values are of replies; remove it"),
        (lambda s: s.imitation != "all" and not s.policy_weight,
         "alg.args.imitation: {imitation} has no effect, because alg.args.policy_weight is 0"),
        (lambda s: "imitation_beta" in s.given and s.imitation == "all",
         "alg.args.imitation_beta has no effect without alg.args.imitation: exp or sign"),
        (lambda s: "max_log_weight" in s.given and s.imitation != "exp",
         "alg.args.max_log_weight has no effect without alg.args.imitation: exp"),
        (lambda s: s.imitation == "sign" and s.imitation_beta > 1,
         "alg.args.imitation_beta is a share of at most 1 with imitation: sign"),
        (lambda s: s.value_min >= s.value_max,
         "alg.args.value_min is {value_min:g}; it must be below value_max, {value_max:g}"),
        (lambda s: s.n_candidates > 1 and s.is_greedy,
         "alg.policy.args.guidance.n_candidates is {n_candidates}, but evaluations decode greedily; set it to 1, or "
         "{evaluation_block}.do_sample: true"),
    ),
    "refuse": (
        (lambda s: s.polyak_rate == 0,
         "alg.args.polyak_rate is 0, so the targets of the values never move; use a small rate such as 0.005"),
    ),
    "note": (
        (lambda s: s.alg_id == "bc" and s.reward_scale != 1,
         "datapool.args.reward_scale has no effect: alg.id: bc learns from all conversations, whatever their rewards"),
    ),
}
# fmt: on


def own_conditions(config: OfflineConfig) -> tuple[dict[str, tuple[Row[OfflineSettings], ...]], OfflineSettings]:
    """The rows, and the settings that they read."""
    algorithm, own = algorithm_class(config), own_policy_args(config)
    policy: Any = policy_class(config)
    values = {"reads_returns": algorithm.reads_returns, "given": config.alg.args}
    values |= {"reranked": policy.reranked, "learns_v": algorithm.has_values}
    values["reward_scale"] = config.datapool.args.get("reward_scale")
    values["fixed_argument"] = next(
        (name for name in (*algorithm.policy_arguments(), *OF_PPO, "critic_reads") if name in own), None
    )
    if policy.guided:
        values["n_candidates"] = policy.guidance_class.from_settings(own.get("guidance")).n_candidates
    values["evaluation_block"] = config.evaluation_block.where
    values["is_greedy"] = not evaluation_kwargs(config)["do_sample"]
    return CONDITIONS, OfflineSettings(values)
