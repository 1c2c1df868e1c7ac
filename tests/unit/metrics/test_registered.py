"""Every metric that YAML can name is built by its id and gives the keys that it is known by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judges import save_judge
from reward_models import save_reward_model
from tiny import make_gpt2, make_tokenizer

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.protocols import DialogueMetric
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn

DIVERSITY_KEYS = {
    *("msttr-100", "msttr-100_nopunct", "seq-rep-4"),
    *(
        f"{name}{variant}"
        for variant in ("", "-nopunct")
        for name in (
            *("total_length", "mean_pred_length", "std_pred_length", "median_pred_length"),
            *("min_pred_length", "max_pred_length", "cond_entropy-2", "cond_entropy-3"),
            *(f"{kind}-{n}" for kind in ("distinct", "vocab_size", "unique", "entropy") for n in (1, 2, 3)),
        )
    ),
}
# Where RL4LMs has the metric, these are its keys.
KEYS = {
    "bert_score": {"semantic/bert_score"},
    "bleu": {"lexical/bleu"},
    "bleu_totto": {"table_to_text/bleu_overall", "table_to_text/bleu_overlap", "table_to_text/bleu_non_overlap"},
    "bleurt": {"semantic/bleurt"},
    "causal_perplexity": {"fluency_metrics/perplexity"},
    "chrf": {"lexical/chrf"},
    "cider": {"lexical/cider"},
    "dates": {"synthetic/dates_in_text"},
    "diversity": {f"diversity_metrics/{name}" for name in DIVERSITY_KEYS},
    "embedding_similarity": {f"semantic/embedding_{form}" for form in ("average", "greedy", "extrema")},
    "goal_followed": {"goal_followed"},
    "hf_evaluate": {"hf_evaluate/overlap/n"},
    "increasing_numbers": {"synthetic/increasing_numbers_in_text"},
    "intent_accuracy": {"intent/accuracy"},
    "learned_reward": {"semantic/learned_automodel_metric"},
    "length": {"length/words"},
    "meteor": {"lexical/meteor_exact_stem"},
    "parent_totto": {
        f"table_to_text/parent_{subset}{part}"
        for subset in ("overall", "overlap", "non_overlap")
        for part in ("/precision", "/recall", "_f_score")
    },
    "persona_consistency": {"consistency/persona", "consistency/persona_contradiction"},
    "reply_perplexity": {"fluency_metrics/reply_perplexity"},
    "reward": {"reward/rouge"},
    "rouge": {f"lexical/rouge_{name}" for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    "rouge_l_max": {"lexical/rouge_l_max"},
    "rudeness": {f"rudeness/{name}" for name in ("level", "polite", "mild", "strong")},
    "sacre_bleu": {"lexical/sacrebleu"},
    "self_bleu": {"diversity_metrics/self_bleu"},
    "shortest_path": {f"shortest_path/{name}" for name in ("return", "optimality", "reached", "illegal")},
    "spice": {"lexical/spice"},
    "spider": {"lexical/spider"},
    "summaCConv": {"consistency/summacconv"},
    "summaCZS": {"consistency/summaczs"},
    "ter": {"lexical/ter"},
}
DIALOGUE_KEYS = {
    "conversation": {
        f"conversation/{name}"
        for name in (
            *("turns", "words", "return", "return_se", "success"),
            *("ended_by_agent", "ended_by_partner", "ended_by_max_turns", "ended_by_length"),
        )
    },
    "conversation_diversity": {
        f"conversation_diversity/{name}"
        for name in (
            *("distinct-1", "distinct-2", "distinct-3"),
            *("self_repetition", "partner_echo", "repeated_utterances"),
        )
    },
    "conversation_reward_model": {"conversation/reward_model"},
    "persona_consistency": KEYS["persona_consistency"],
    "persona_ranking": {f"persona_ranking/{name}" for name in ("p@1", "p@5", "r@5", "r@10", "mrr", "potential")},
}
WALK = {"start": "a", "edges": {"a": ["cat"], "cat": []}, "goal": "cat", "max_steps": 3}
TEXTS, REFERENCES = ["a cat sat a mat", "w1 w2 😀"], [["a dog sat a mat", "hi"], ["w1 w2 w3"]]


class AlwaysInform:
    def predict(self, prompt_texts: list[str], reply_texts: list[str], meta_infos: Any) -> list[int]:
        return [1] * len(reply_texts)


@pytest.fixture
def args(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """Arguments of a metric by its id, with stand-ins for what comes from outside."""

    def of(id: str) -> dict[str, Any]:
        get = request.getfixturevalue
        if id in ("bleurt", "learned_reward"):
            return {"model_name": get("save_classifier")(["score"])}
        if id in ("persona_consistency", "summaCZS"):
            return {"model_name": get("save_classifier")(["entailment", "neutral", "contradiction"])}
        if id == "summaCConv":
            shapes = {"mlp.weight": (1, 23), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}
            torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "weights.bin")
            return {"start_file": str(tmp_path / "weights.bin"), "models": [of("summaCZS")["model_name"]]}
        if id in ("spice", "spider"):
            return {"spice_path": str(get("spice_folder")), "java": str(get("spice_folder") / "java")}
        if id == "hf_evaluate":
            features = 'datasets.Features({"predictions": text})'
            return {"name": get("save_metric")(features, "predictions", 'return {"n": len(predictions)}')}
        known = {
            "bert_score": lambda: {"model_type": get("bert_folder"), "num_layers": 1},
            "causal_perplexity": lambda: {"stride": 4},
            "conversation_reward_model": lambda: {"model_name": save_reward_model(tmp_path, "dialogue")},
            "embedding_similarity": lambda: {"model_name": get("bert_folder")},
            "increasing_numbers": lambda: {"min_tokens": 3},
            "intent_accuracy": lambda: {"classifier": AlwaysInform()},
            "meteor": lambda: {"synonyms": False},
            "persona_ranking": lambda: {
                "personas": lambda key: [("a cat",), ("hi", "a b"), ("x",)],
                "n_distractors": 2,
            },
            "reply_perplexity": lambda: {"model_name": save_judge(tmp_path / "model"), "batch_size": 256},
            "reward": lambda: {"id": "rouge"},
        }
        return known[id]() if id in known else {}

    return of


def test_table_has_every_metric() -> None:
    assert sorted({**KEYS, **DIALOGUE_KEYS}) == MetricRegistry.ids()


@pytest.mark.parametrize(
    ("id", "arguments"),
    [
        ("bert_score", {"language": "en"}),
        ("bleurt", {"config_name": "bleurt-large-512"}),
        ("causal_perplexity", {"tokenizer_id": "gpt2", "stride": 512, "model_type": "causal"}),
        ("learned_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "batch_size": 100}),
        ("rouge", {"use_single_ref": False}),
        ("sacre_bleu", {"tokenize": "intl"}),
        ("summaCConv", {"granularity": "sentence"}),
        ("summaCZS", {"granularity": "sentence", "use_ent": True, "use_con": False}),
    ],
)
def test_arguments_of_rl4lms_configs_are_accepted(id: str, arguments: dict[str, Any]) -> None:
    MetricRegistry.check(id, arguments)


@pytest.mark.parametrize("id", KEYS)
def test_metric_gives_its_keys(id: str, args: Any) -> None:
    tokenizer = make_tokenizer()
    metric = MetricRegistry.get(id, args(id), tokenizer=tokenizer)
    table = {"table": [[{"value": "cat", "is_header": False}]], "highlighted_cells": [[0, 0]]}
    infos = [
        {
            "intent": [1],
            "persona": ["a cat"],
            "raw_table": {**table, "overlap_subset": overlap},
            "walk": WALK,
            "goal": "small_talk",
        }
        for overlap in (True, False)
    ]
    found = metric.compute(["a dog sat a mat."] * 2, TEXTS, REFERENCES, infos, make_gpt2(tokenizer), "val")
    assert set(found) == KEYS[id]
    for scores, corpus in found.values():
        assert isinstance(corpus, float) and -1e6 < corpus < 1e6
        assert scores is None or (len(scores) == 2 and all(isinstance(score, float) for score in scores))


# Nothing, one word, marks, unicode, an emoji, the same as the reference; references that are blank, several, or both.
ODD_TEXTS = ["", " ", "word", ".", "naïve 一二三", "😀", "a cat sat", "\n"]
ODD_REFERENCES = [
    ["a"],
    [""],
    ["word", "other"],
    ["", "."],
    ["一二", "naïve"],
    ["😀", "a", "hi"],
    ["a cat sat"],
    ["\n"],
]


@pytest.mark.parametrize("id", KEYS)
@pytest.mark.parametrize("n_times", [1, 1250], ids=["each", "ten_thousand"])
def test_metric_measures_odd_texts_and_many(id: str, n_times: int, args: Any) -> None:
    tokenizer = make_tokenizer()
    metric = MetricRegistry.get(id, args(id), tokenizer=tokenizer)
    texts, references = ODD_TEXTS * n_times, ODD_REFERENCES * n_times
    table = {"table": [[{"value": "cat"}]], "highlighted_cells": [[0, 0]], "overlap_subset": True}
    infos = [{"intent": [1], "persona": ["a cat", ""], "raw_table": table, "walk": WALK, "goal": "small_talk"}] * len(
        texts
    )
    found = metric.compute(["a cat sat."] * len(texts), texts, references, infos, make_gpt2(tokenizer), "val")
    for scores, corpus in found.values():
        assert -1e6 < corpus < 1e6
        assert scores is None or (len(scores) == len(texts) and all(-1e6 < score < 1e6 for score in scores))


def conversation(*texts: str, **properties: Any) -> Dialogue:
    """A conversation that the partner begins."""
    turns = tuple(Turn(text, (PARTNER, AGENT)[i % 2]) for i, text in enumerate(texts))
    return Dialogue("x", turns, meta_data={"persona": ["a cat", ""], "partner_persona": ["a cat"]}, **properties)


@pytest.mark.parametrize("id", DIALOGUE_KEYS)
@pytest.mark.parametrize("n_times", [1, 1250], ids=["each", "ten_thousand"])
def test_metric_measures_odd_conversations_and_many(id: str, n_times: int, args: Any) -> None:
    metric = MetricRegistry.get(id, args(id))
    assert isinstance(metric, DialogueMetric)
    odd = [
        *(conversation(), conversation("hi"), conversation("", ""), conversation("a", "\n", "b", "\n")),
        conversation("a cat sat", "a cat sat", n_given=1, outcome={"success": 1.0}, ended_by="agent"),
        conversation("naïve 一二三", "😀 .", "x", "naïve 一二三 😀", ended_by="max_turns"),
        *(conversation(*ODD_TEXTS), conversation("a", "b", n_given=2)),
    ] * n_times
    found = metric.compute(odd, None, "val")
    assert set(found) == DIALOGUE_KEYS[id]
    for key, (scores, corpus) in found.items():
        assert isinstance(corpus, float) and -1e6 < corpus < 1e6
        assert (scores is None) == key.endswith("_se")
        assert scores is None or (len(scores) == len(odd) and all(isinstance(score, float) for score in scores))
    with pytest.raises(ValueError, match="at least one text"):
        metric.compute([])
