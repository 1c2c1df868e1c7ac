"""Whether replies from CUDA graphs, the default on a GPU, are right on this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.masks import padded
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import tolerance
from rl4dialog.runs.provenance import hardware, package_versions
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly

N_ROWS, N_TOKENS, N_ROUNDS = 16, 32, 3
# Attention with heads of its own and shared ones, each weight cast or none, adapters.
CASES: dict[str, dict[str, Any]] = {
    "gpt2, fp32": {"model_name": "builtin/tiny-gpt2"},
    "gpt2, bf16": {"model_name": "builtin/tiny-gpt2", "precision": "bf16"},
    "llama, bf16": {"model_name": "builtin/tiny-llama", "precision": "bf16"},
    "llama with LoRA, bf16": {"model_name": "builtin/tiny-llama", "precision": "bf16", "lora": {"r": 4}},
}


def fallback(policy: LMActorCriticPolicy) -> str | None:
    """Why a policy that has sampled replies did so without some graphs, or without any; else ``None``."""
    if (reason := policy.eager_reason(policy.settings)) is not None:
        return reason
    if (sampler := vars(policy).get("_graph_sampler")) is None:
        return "its log-probabilities are not those of training, or a capture failed"
    graphs = sampler._graphs
    dropped = [f"{rows} rows of {columns} columns" for (rows, columns, _), graph in graphs.items() if graph is None]
    if dropped:
        return f"there is none for {', '.join(dropped)}"
    return None if sampler._captures else "there is no CUDA device"


@torch.no_grad()
def compare(
    policy: LMActorCriticPolicy, prompts: Sequence[list[int]], n_rounds: int = N_ROUNDS, n_turns: int = 2
) -> dict[str, float]:
    """Replies from graphs beside those of the loop and the training pass, in conversations, while weights change.

    Returns the largest differences of log-probabilities, the share of equal greedy tokens (after one that differs, no
    others are compared), and the number of sizes of the batch that had a graph.
    """
    sampler = policy.sampler
    found = {"difference_to_loop": 0.0, "difference_to_training": 0.0, "same_share": 1.0, "sizes": 0.0}
    for _ in range(n_rounds):
        said: Sequence[list[int]] = prompts
        with policy.remembering_prompts():
            for _ in range(n_turns):
                ids, mask = (each.to(policy.device) for each in padded(said, left=True))
                obs = {"prompt_ids": ids, "prompt_mask": mask}
                policy.sampler = "transformers"
                loop = policy.generate(obs, do_sample=False)
                policy.sampler = sampler
                graph, drawn = policy.generate(obs, do_sample=False), policy.generate(obs)
                n = min(graph.response_ids.shape[1], loop.response_ids.shape[1])
                same = (graph.response_ids[:, :n] == loop.response_ids[:, :n]).cumprod(dim=1).bool()
                gaps = (graph.log_probs[:, :n] - loop.log_probs[:, :n]).abs() * same  # type: ignore[index]
                to_training = policy.graph_gaps(drawn.to("cpu"))
                for name, values in (("loop", gaps.flatten().tolist()), ("training", to_training)):
                    worst = max(map(abs, values), default=float("nan"))
                    found[f"difference_to_{name}"] = max(worst, found[f"difference_to_{name}"])
                found["same_share"] = min(found["same_share"], float(same.float().mean()))
                graphs = getattr(vars(policy).get("_graph_sampler"), "_graphs", ())
                found["sizes"] = max(found["sizes"], len({rows for rows, *_ in graphs}))
                said = [row.ids for row in drawn.rows()]
        policy.weights_will_change()
        for parameter in policy.actor_parameters():  # and those of adapters that begin with 0
            parameter.add_(0.02 * torch.randn_like(parameter))
    return found


def problem_of(policy: LMActorCriticPolicy, found: dict[str, float], shrinks: bool = True) -> str | None:
    """What is wrong with the replies that were compared, of which some were much longer if the batch ``shrinks``."""
    with policy._autocast():
        limit = tolerance(policy.language_model)
    if reason := fallback(policy):
        return f"graphs are not used: {reason}"
    if not max(found["difference_to_loop"], found["difference_to_training"]) <= limit:
        return f"log-probabilities differ by more than {limit:g} nats"
    return "the batch never shrank" if shrinks and found["sizes"] < 2 else None


def check_graphs() -> bool:
    """Say whether graphs are safe on this GPU, and what to report.

    Raises:
        ConfigError: If there is no CUDA device.
    """
    if not torch.cuda.is_available():
        no_gpu = "--gpu checks replies from CUDA graphs, but PyTorch finds no CUDA device here"
        raise ConfigError(f"{no_gpu}; without one, no graphs are used, and there is nothing to check")
    messages, report = list[str](), dict[str, Any]()
    logger, listener = logging.getLogger("rl4dialog.policies"), logging.Handler(logging.WARNING)
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(listener)
    try:
        for name, settings in CASES.items():
            try:
                policy, prompts = _policy_of(**settings)
                found: dict[str, Any] = compare(policy, prompts)
                found["problem"] = problem_of(policy, found)
            except Exception as error:  # whatever it is, it is to be reported
                found = {"problem": f"{type(error).__name__}: {error}"}
            report[name] = found
            numbers = ", ".join(f"{key} {value:.3g}" for key, value in found.items() if isinstance(value, int | float))
            print(f"{'fail' if found['problem'] else 'pass'}  {name}: {found['problem'] or numbers}")
    finally:
        logger.removeHandler(listener)
    is_safe = not messages and all(found["problem"] is None for found in report.values())
    print("The default is safe here." if is_safe else "Not safe: set generation.backend: transformers.", "To report:")
    print(json.dumps({"cases": report, "warnings": messages, "versions": package_versions(), "hardware": hardware()}))
    return is_safe


def _policy_of(
    model_name: str, precision: str = "fp32", lora: dict[str, Any] | None = None
) -> tuple[LMActorCriticPolicy, list[list[int]]]:
    """A tiny policy on the GPU, whose replies have different lengths, and prompts."""
    policy = {"id": "causal_lm_actor_critic_policy", "args": {"model_name": model_name, "critic": "none"}}
    args = {"n_generations": 2, "device": "cuda"}
    alg = {"id": "rloo", "args": args, "kl_div": {"coeff": 0.1}, "policy": policy}
    config = {
        "precision": precision,
        "lora": lora,
        "tokenizer": {"model_name": model_name},
        "datapool": {"id": "small_talk"},
        "reward_fn": {"id": "repetition_penalty"},
        "env": {"n_envs": 2, "args": {"max_prompt_length": 4 * N_TOKENS, "max_episode_length": N_TOKENS}},
        "alg": alg,
        "train_evaluation": {"n_iters": 1},
    }
    parts = Assembly(parse_config(config, "the check of graphs"))  # type: ignore[arg-type]
    n_ids = len(parts.tokenizer)
    vars(parts).update(end_of_turn=EndOfTurn(parts.tokenizer, range(0, n_ids, N_TOKENS // 2)))
    prompts = [[(7 * row + i) % n_ids for i in range(4 + row)] for row in range(N_ROWS)]
    return parts.algorithm.policy, prompts
