"""Every reward that YAML can name is built by its id, pays a finite number, and the same alone as among others."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import Any

import cloudpickle
import pytest
from replies import state
from tiny import make_env, make_env_kwargs, make_tokenizer

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.metrics import meteor
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rewards.scoring import Scorer

# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
# Reward, metric and its key of those that pay a metric's score; with arguments for both.
SAME_AS_METRIC: dict[str, tuple[str, str]] = {
    "bert_score": ("bert_score", "semantic/bert_score"),
    "bleu": ("bleu", "lexical/bleu"),
    "bleurt": ("bleurt", "semantic/bleurt"),
    "chrf": ("chrf", "lexical/chrf"),
    "increasing_numbers": ("increasing_numbers", "synthetic/increasing_numbers_in_text"),
    "learned_batched_reward": ("learned_reward", "semantic/learned_automodel_metric"),
    "learned_reward": ("learned_reward", "semantic/learned_automodel_metric"),
    "meteor": ("meteor", "lexical/meteor_exact_stem"),
    "metric": ("length", "length/words"),
    "parent": ("parent_totto", "table_to_text/parent_overall_f_score"),
    "rouge": ("rouge", "lexical/rouge_rouge1"),
    "rouge_l_max": ("rouge_l_max", "lexical/rouge_l_max"),
    "sacre_bleu": ("sacre_bleu", "lexical/sacrebleu"),
    "sentences_with_dates": ("dates", "synthetic/dates_in_text"),
    "shortest_path": ("shortest_path", "shortest_path/return"),
    "spider": ("spider", "lexical/spider"),
    "ter": ("ter", "lexical/ter"),
}
OTHERS = (
    *("common_gen_preference_model", "common_gen_repeat_penalty", "common_gen_repeat_penalty_batched", "composite"),
    *("intent_accuracy", "keyword", "length_penalty", "missing_eos_penalty", "nlp_reward", "regex"),
    *("repetition_penalty", "rouge_combined", "rudeness"),
)
JUDGE = ("judge",)  # asks a model, see test_judge.py
OF_CONVERSATIONS = ("conversation_reward_model", "outcome", "partner", "persona_ranking")
DEPENDS_ON_THE_OTHERS = ("spider",)
PAYS_BEFORE_THE_END = ("shortest_path",)

PROMPTS = ["generate a sentence with: cat."] * 3
TEXTS = ["a cat sat on a mat", "7 8 9 duh 2024-12-31", "a mat a mat a mat a mat"]
REFERENCES = [["a cat sat on a mat today", "hi"], ["a dog sat"], ["the mat", "a mat"]]
TABLE = {"table": [[{"value": "cat"}]], "highlighted_cells": [[0, 0]]}
EDGES = {"x": ["a"], "a": ["cat", "mat"], "cat": [], "mat": []}
WALK = {"start": "x", "edges": EDGES, "goal": "mat", "max_steps": 10}
INFOS = [{"intent": [1], "concepts": ["cat"], "raw_table": TABLE, "walk": WALK}] * 3


class ByLength:
    def predict(self, prompt_texts: list[str], reply_texts: list[str], meta_infos: Any) -> list[int]:
        return [1 + len(text) % 2 for text in reply_texts]


@pytest.fixture
def args(request: pytest.FixtureRequest) -> Any:
    """Arguments of a reward by its id, with stand-ins for what comes from outside."""

    def of(id: str) -> dict[str, Any]:
        get = request.getfixturevalue
        known = {
            "bert_score": lambda: {"model_type": get("bert_folder"), "num_layers": 1},
            "bleurt": lambda: {"model_name": get("save_classifier")(["rating"])},
            "common_gen_preference_model": lambda: {"model_name": get("save_t5")(["good", "bad", "a", "cat"])},
            "composite": lambda: {"rewards": [{"id": "rouge"}, {"id": "length_penalty", "args": of("length_penalty")}]},
            "increasing_numbers": lambda: {"min_tokens": 3},
            "intent_accuracy": lambda: {"classifier": ByLength(), "synonyms": False},
            "keyword": lambda: {"keywords": ["cat", "mat"]},
            "learned_batched_reward": lambda: of("learned_reward"),
            "learned_reward": lambda: {"model_name": get("save_classifier")(["bad", "good"]), "label_ix": 1},
            "length_penalty": lambda: {"max_length": 5},
            "meteor": lambda: {"synonyms": False},
            "metric": lambda: {"id": "length"},
            "nlp_reward": lambda: of("intent_accuracy"),
            "regex": lambda: {"pattern": "cat"},
            "spider": lambda: {"spice_path": str(get("spice_folder")), "java": str(get("spice_folder") / "java")},
        }
        return known[id]() if id in known else {}

    return of


def test_tables_have_every_reward() -> None:
    assert sorted([*SAME_AS_METRIC, *OTHERS, *JUDGE, *OF_CONVERSATIONS]) == RewardFunctionRegistry.ids()


@pytest.mark.parametrize("id", [*SAME_AS_METRIC, *(id for id in OTHERS if id != "missing_eos_penalty")])
def test_reward_pays_its_metric_and_a_batch_is_paid_as_one_by_one(id: str, args: Any) -> None:
    arguments = args(id)
    parts = as_parts(RewardFunctionRegistry.get(id, arguments), id)
    together = Scorer(parts).score(FinishedReplies(PROMPTS, TEXTS, REFERENCES, INFOS)).total
    assert all(math.isfinite(score) for score in together) and len(set(together)) > 1
    if id in SAME_AS_METRIC:
        metric_id, key = SAME_AS_METRIC[id]
        metric = MetricRegistry.get(metric_id, {} if id == "metric" else arguments)
        scores, _ = metric.compute(PROMPTS, TEXTS, REFERENCES, INFOS)[key]
        expected = [1 - score for score in scores] if id == "ter" else scores
        assert together == pytest.approx(expected, abs=1e-5)
    if id not in DEPENDS_ON_THE_OTHERS:
        alone = [
            Scorer(parts).score(FinishedReplies(*[[each] for each in row])).total[0]
            for row in zip(PROMPTS, TEXTS, REFERENCES, INFOS, strict=True)
        ]
        assert alone == pytest.approx(together, abs=1e-5)
    unfinished = Scorer(parts).score(FinishedReplies(PROMPTS, TEXTS, REFERENCES, INFOS, dones=[False] * 3))
    assert id in PAYS_BEFORE_THE_END or unfinished.total == [0.0] * 3


@pytest.mark.parametrize("id", [*SAME_AS_METRIC, *OTHERS])
def test_reward_of_the_workers_pays_token_by_token_what_it_pays_for_the_text(id: str, args: Any) -> None:
    """Over the steps of an episode, with a word per token; shaped where it can be."""
    arguments = args(id)
    can_be_shaped = "shaping='end'" in RewardFunctionRegistry.describe(id)[1]
    for more in ({}, {"shaping": "every_token"}) if can_be_shaped else ({},):
        for part in as_parts(RewardFunctionRegistry.get(id, {**arguments, **more}), id):
            if part.in_main_process or id == "missing_eos_penalty":
                continue
            total = 0.0
            words = TEXTS[0].split()
            for n in range(1, len(words) + 1):
                states = [state(" ".join(words[:m]), REFERENCES[0], PROMPTS[0]) for m in (n - 1, n)]
                total += part.function(states[0], 1, states[1], n == len(words), INFOS[0])
            once = FinishedReplies(PROMPTS[:1], TEXTS[:1], REFERENCES[:1], INFOS[:1])
            assert part.term(total) == pytest.approx(Scorer([part]).score(once).total[0], abs=1e-6)


def test_missing_eos_penalty_is_paid_in_the_env() -> None:
    reward = RewardFunctionRegistry.get("missing_eos_penalty")
    env = make_env(make_tokenizer(), reward_parts=[RewardPart("eos", 1.0, reward)])
    env.reset(seed=0)
    assert [env.step(5)[1] for _ in range(5)] == [0.0] * 4 + [-1.0]


@pytest.mark.parametrize(
    ("id", "arguments"),
    [
        ("bert_score", {"language": "de"}),
        ("bleu", {}),
        ("chrf", {}),
        ("common_gen_preference_model", {"model_type": "11b", "device": "cuda:1", "batch_size": 1}),
        ("increasing_numbers", {"min_tokens": 20}),
        ("intent_accuracy", {"shape": True, "intent_coeff": 0.25, "auto_coeff": 0.75}),
        ("learned_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "include_prompt_for_eval": True}),
        ("learned_batched_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1}),
        ("meteor", {"shaping_fn": "common_gen_repeat_penalty"}),
        ("meteor", {"shaping_fn": "parent"}),
        ("parent", {}),
        ("rouge", {"rouge_type": "rouge1", "shaping_fn": "common_gen_repeat_penalty", "use_single_ref": False}),
        ("rouge_combined", {"shaping_fn": "common_gen_repeat_penalty"}),
        (
            "rouge_l_max",
            {
                **{"max_n": 4, "limit_length": True, "length_limit": 100, "length_limit_type": "words"},
                **{"apply_avg": True, "apply_best": True, "alpha": 0.5, "weight_factor": 1.2, "stemming": True},
            },
        ),
        ("sacre_bleu", {"tokenize": "intl"}),
        ("sentences_with_dates", {}),
        ("spider", {"spice_coeff": 0.5, "cider_coeff": 0.5, "shaping_fn": "common_gen_repeat_penalty_batched"}),
        ("ter", {}),
        # OpenRL's.
        ("nlp_reward", {"ref_model": "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog", "intent_model": "./intent"}),
    ],
)
def test_arguments_of_rl4lms_and_openrl_configs_are_accepted(id: str, arguments: dict[str, Any]) -> None:
    RewardFunctionRegistry.check(id, arguments)


# -- in forked workers ------------------------------------------------------------------------------------------------

N_WORKERS = 4


def own_scores(env: Any, shares: list[list[str]], names: list[str]) -> dict[str, list[float]]:
    """What the rewards of an environment pay for its own share of replies."""
    parts = [part for part in env.env.reward_parts if part.name in names]
    return scores_of(parts, shares[env.share])


def scores_of(parts: list[RewardPart], texts: list[str]) -> dict[str, list[float]]:
    references = [
        [f"{text[: len(text) // 2]} today {other}"] for text, other in zip(texts, reversed(texts), strict=True)
    ]
    n = len(texts)
    return Scorer(parts).score(FinishedReplies(PROMPTS[:1] * n, texts, references, INFOS[:1] * n, texts)).parts


def conversation(env: Any) -> list[str | None]:
    partner = env.env.conversation.partner
    partner.reset({}, 0)
    return [partner.reply([]) for _ in range(3)]


def english_texts(n: int) -> list[str]:
    """Texts of adjectives, no two alike; reading WordNet's index leaves the file of those open."""
    lines = (meteor._DEBIAN_WORDNET / "index.adj").read_text("utf-8").splitlines()
    words = [line.split()[0] for line in lines if line[0] != " "]
    return [" ".join(words[(37 * i + 101 * k) % len(words)] for k in range(6)) for i in range(n)]


@pytest.mark.skipif(not meteor._DEBIAN_WORDNET.is_dir(), reason="METEOR needs Debian's wordnet-base")
@pytest.mark.parametrize("n_replies", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_forked_workers_score_as_one_process_does(args: Any, n_replies: int) -> None:
    """Each scores other replies at the same time. That no file is shared is checked elsewhere."""
    parts: list[RewardPart] = []
    for id in (*SAME_AS_METRIC, *OTHERS):
        reward = RewardFunctionRegistry.get(id, {} if id == "meteor" else args(id))
        parts += [dataclasses.replace(part, name=f"{id}/{part.name}") for part in as_parts(reward, id)]
    parts = [part for part in parts if not part.in_main_process]
    of_texts = [part for part in parts if not part.name.startswith("missing_eos_penalty")]
    names = [part.name for part in of_texts]
    assert len(names) > 12 and "meteor/meteor" in names
    shares = [english_texts(n_replies)[i::N_WORKERS] for i in range(N_WORKERS)]
    replies = ["w1", "w2"]
    kwargs = make_env_kwargs(reward_parts=parts, max_turns=3, partner=ScriptedPartner(replies))
    env = make_vec_env(kwargs, N_WORKERS, "blocks", N_WORKERS)
    try:
        for i in range(N_WORKERS):
            env.set_attr("share", i, i)
        found = env._call(functools.partial(own_scores, shares=shares, names=names))
        assert env._call(conversation) == [[*replies, None]] * N_WORKERS
    finally:
        env.close()
    for own, share in zip(found, shares, strict=True):
        assert own == scores_of(of_texts, share)
    assert len({score for own in found for score in own["meteor/meteor"]}) > 3
