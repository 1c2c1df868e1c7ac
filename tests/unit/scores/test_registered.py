"""Every metric and reward that YAML can name is built by its id, and gives the keys or payments that it is known by."""

import dataclasses
import math
import sys

import cloudpickle
import gymnasium as gym
import pytest
from feature_rows import rows_of_features
from judges import save_judge
from replies import state
from reward_models import save_reward_model
from tiny import make_env_kwargs, make_gpt2, make_tokenizer

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.protocols import BatchedConversationReward, ConversationReward, DialogueMetric
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.envs.vectorize import BlockVecEnv
from rl4dialog.envs.worker import make_utterance_env
from rl4dialog.partners.scripted import ScriptedPartner
from rl4dialog.scores import meteor
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer

# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

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
    "bleurt": {"semantic/bleurt"},
    "causal_perplexity": {"fluency_metrics/perplexity"},
    "chrf": {"lexical/chrf"},
    "dates": {"synthetic/dates_in_text"},
    "diversity": {f"diversity_metrics/{name}" for name in DIVERSITY_KEYS},
    "embedding_similarity": {f"semantic/embedding_{form}" for form in ("average", "greedy", "extrema")},
    "hf_evaluate": {"hf_evaluate/overlap/n"},
    "increasing_numbers": {"synthetic/increasing_numbers_in_text"},
    "intent_accuracy": {"intent/accuracy"},
    "learned_reward": {"semantic/learned_automodel_metric"},
    "length": {"length/words"},
    "meteor": {"lexical/meteor_exact_stem"},
    "reply_perplexity": {"fluency_metrics/reply_perplexity"},
    "reward": {"reward/rouge"},
    "rouge": {f"lexical/rouge_{name}" for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    "sacre_bleu": {"lexical/sacrebleu"},
    "self_bleu": {"diversity_metrics/self_bleu"},
    "ter": {"lexical/ter"},
    **rows_of_features("METRIC_KEYS"),
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
    **rows_of_features("DIALOGUE_METRIC_KEYS"),
}
WALK = {"start": "a", "edges": {"a": ["cat"], "cat": []}, "goal": "cat", "max_steps": 3}


class ByLength:
    def predict(self, prompt_texts, reply_texts, meta_infos):
        return [1 + len(text) % 2 for text in reply_texts]


@pytest.fixture
def args(request, tmp_path):

    def of(id):
        get = request.getfixturevalue
        if id == "hf_evaluate":
            features = 'datasets.Features({"predictions": text})'
            return {"name": get("save_metric")(features, "predictions", 'return {"n": len(predictions)}')}
        known = {
            "bert_score": lambda: {"model_type": get("bert_folder"), "num_layers": 1},
            "bleurt": lambda: {"model_name": get("save_classifier")(["rating"])},
            "causal_perplexity": lambda: {"stride": 4},
            "composite": lambda: {"rewards": [{"id": "rouge"}, {"id": "length_penalty", "args": of("length_penalty")}]},
            "conversation_reward_model": lambda: {"model_name": save_reward_model(tmp_path, "dialogue")},
            "embedding_similarity": lambda: {"model_name": get("bert_folder")},
            "increasing_numbers": lambda: {"min_tokens": 3},
            "intent_accuracy": lambda: {"classifier": ByLength()},
            "keyword": lambda: {"keywords": ["cat", "mat"]},
            "learned_batched_reward": lambda: of("learned_reward"),
            "learned_reward": lambda: {"model_name": get("save_classifier")(["bad", "good"]), "label_ix": 1},
            "length_penalty": lambda: {"max_length": 5},
            "meteor": lambda: {"synonyms": False},
            "metric": lambda: {"id": "length"},
            "nlp_reward": lambda: of("intent_accuracy"),
            "regex": lambda: {"pattern": "cat"},
            "reply_perplexity": lambda: {"model_name": save_judge(tmp_path / "model"), "batch_size": 256},
            "reward": lambda: {"id": "rouge"},
        }
        if id in (of_features := rows_of_features("ARGUMENTS")):
            return of_features[id](get)
        return known[id]() if id in known else {}

    return of


def of_reward(id, args):
    return {**args(id), **({"synonyms": False} if id in ("intent_accuracy", "nlp_reward") else {})}


def test_table_has_every_metric():
    assert sorted({**KEYS, **DIALOGUE_KEYS}) == MetricRegistry.ids()


# Nothing, one word, marks, unicode, an emoji, the same as the reference; references that are blank, several, or both.
ODD_TEXTS = ["", " ", "word", ".", "naïve 一二三", "😀", "a cat sat", "\n"]
ODD_REFERENCES = [
    ["a"], [""], ["word", "other"], ["", "."], ["一二", "naïve"], ["😀", "a", "hi"], ["a cat sat"], ["\n"],
]  # fmt: skip


@pytest.mark.parametrize("id", KEYS)
@pytest.mark.parametrize("n_times", [1, 125], ids=["each", "a_thousand"])
def test_metric_gives_its_keys_for_odd_texts_and_many(id, n_times, args):
    tokenizer = make_tokenizer()
    metric = MetricRegistry.get(id, args(id), tokenizer=tokenizer)
    texts, references = ODD_TEXTS * n_times, ODD_REFERENCES * n_times
    info = {"intent": [1], "persona": ["a cat", ""], "walk": WALK, "goal": "small_talk"}
    table = {"table": [[{"value": "cat"}]], "highlighted_cells": [[0, 0]]}
    tables = [{**info, "raw_table": {**table, "overlap_subset": overlap}} for overlap in (True, False)]
    infos = tables * (len(texts) // 2)
    found = metric.compute(["a cat sat."] * len(texts), texts, references, infos, make_gpt2(tokenizer), "val")
    assert set(found) == KEYS[id]
    for scores, corpus in found.values():
        assert isinstance(corpus, float) and -1e6 < corpus < 1e6
        assert scores is None or (len(scores) == len(texts) and all(-1e6 < score < 1e6 for score in scores))


def conversation(*texts, **properties):
    turns = tuple(Turn(text, (PARTNER, AGENT)[i % 2]) for i, text in enumerate(texts))
    return Dialogue("x", turns, meta_data={"persona": ["a cat", ""], "partner_persona": ["a cat"]}, **properties)


@pytest.mark.parametrize("id", DIALOGUE_KEYS)
@pytest.mark.parametrize("n_times", [1, 125], ids=["each", "a_thousand"])
def test_metric_measures_odd_conversations_and_many(id, n_times, args):
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


# Reward, metric and its key of those that pay a metric's score; with arguments for both.
SAME_AS_METRIC = {
    "bert_score": ("bert_score", "semantic/bert_score"),
    "bleu": ("bleu", "lexical/bleu"),
    "bleurt": ("bleurt", "semantic/bleurt"),
    "chrf": ("chrf", "lexical/chrf"),
    "increasing_numbers": ("increasing_numbers", "synthetic/increasing_numbers_in_text"),
    "learned_batched_reward": ("learned_reward", "semantic/learned_automodel_metric"),
    "learned_reward": ("learned_reward", "semantic/learned_automodel_metric"),
    "meteor": ("meteor", "lexical/meteor_exact_stem"),
    "metric": ("length", "length/words"),
    "rouge": ("rouge", "lexical/rouge_rouge1"),
    "sacre_bleu": ("sacre_bleu", "lexical/sacrebleu"),
    "sentences_with_dates": ("dates", "synthetic/dates_in_text"),
    "ter": ("ter", "lexical/ter"),
    **rows_of_features("SAME_AS_METRIC"),
}
OTHERS = [  # but for those of conversations, and for judge, which asks a model (test_judge.py)
    id
    for id in RewardFunctionRegistry.ids()
    if not issubclass(RewardFunctionRegistry.resolve(id), (ConversationReward, BatchedConversationReward))
    and id not in (*SAME_AS_METRIC, "judge")
]
DEPENDS_ON_THE_OTHERS = rows_of_features("DEPENDS_ON_THE_OTHERS")
PAYS_BEFORE_THE_END = rows_of_features("PAYS_BEFORE_THE_END")

REPLY_PROMPTS = ["generate a sentence with: cat."] * 3
REPLIES = ["a cat sat on a mat", "7 8 9 duh 2024-12-31", "a mat a mat a mat a mat"]
REPLY_REFERENCES = [["a cat sat on a mat today", "hi"], ["a dog sat"], ["the mat", "a mat"]]
REPLY_TABLE = {"table": [[{"value": "cat"}]], "highlighted_cells": [[0, 0]]}
EDGES = {"x": ["a"], "a": ["cat", "mat"], "cat": [], "mat": []}
REPLY_WALK = {"start": "x", "edges": EDGES, "goal": "mat", "max_steps": 10}
INFOS = [{"intent": [1], "concepts": ["cat"], "raw_table": REPLY_TABLE, "walk": REPLY_WALK}] * 3


@pytest.mark.parametrize("id", [*SAME_AS_METRIC, *(id for id in OTHERS if id != "missing_eos_penalty")])
def test_reward_pays_its_metric_and_a_batch_is_paid_as_one_by_one(id, args):
    arguments = of_reward(id, args)
    parts = as_parts(RewardFunctionRegistry.get(id, arguments), id)
    together = Scorer(parts).score(FinishedReplies(REPLY_PROMPTS, REPLIES, REPLY_REFERENCES, INFOS)).total
    assert all(math.isfinite(score) for score in together) and len(set(together)) > 1
    if id in SAME_AS_METRIC:
        metric_id, key = SAME_AS_METRIC[id]
        metric = MetricRegistry.get(metric_id, {} if id == "metric" else arguments)
        scores, _ = metric.compute(REPLY_PROMPTS, REPLIES, REPLY_REFERENCES, INFOS)[key]
        expected = [1 - score for score in scores] if id == "ter" else scores
        assert together == pytest.approx(expected, abs=1e-5)
    if id not in DEPENDS_ON_THE_OTHERS:
        alone = [
            Scorer(parts).score(FinishedReplies(*[[each] for each in row])).total[0]
            for row in zip(REPLY_PROMPTS, REPLIES, REPLY_REFERENCES, INFOS, strict=True)
        ]
        assert alone == pytest.approx(together, abs=1e-5)
    unfinished = Scorer(parts).score(
        FinishedReplies(REPLY_PROMPTS, REPLIES, REPLY_REFERENCES, INFOS, dones=[False] * 3)
    )
    assert id in PAYS_BEFORE_THE_END or unfinished.total == [0.0] * 3


@pytest.mark.parametrize("id", [*SAME_AS_METRIC, *OTHERS])
def test_reward_of_the_workers_pays_token_by_token_what_it_pays_for_the_text(id, args):
    arguments = of_reward(id, args)
    can_be_shaped = "shaping='end'" in RewardFunctionRegistry.describe(id)[1]
    for more in ({}, {"shaping": "every_token"}) if can_be_shaped else ({},):
        for part in as_parts(RewardFunctionRegistry.get(id, {**arguments, **more}), id):
            if part.in_main_process or id == "missing_eos_penalty":
                continue
            total = 0.0
            words = REPLIES[0].split()
            for n in range(1, len(words) + 1):
                states = [state(" ".join(words[:m]), REPLY_REFERENCES[0], REPLY_PROMPTS[0]) for m in (n - 1, n)]
                total += part.function(states[0], 1, states[1], n == len(words), INFOS[0])
            once = FinishedReplies(REPLY_PROMPTS[:1], REPLIES[:1], REPLY_REFERENCES[:1], INFOS[:1])
            assert part.term(total) == pytest.approx(Scorer([part]).score(once).total[0], abs=1e-6)


ACCEPTED = {
    MetricRegistry: [
        ("bert_score", {"language": "en"}),
        ("bleurt", {"config_name": "bleurt-large-512"}),
        ("causal_perplexity", {"tokenizer_id": "gpt2", "stride": 512, "model_type": "causal"}),
        ("learned_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "batch_size": 100}),
        ("rouge", {"use_single_ref": False}),
        ("sacre_bleu", {"tokenize": "intl"}),
        *rows_of_features("ACCEPTED_METRICS"),
    ],
    RewardFunctionRegistry: [
        ("bert_score", {"language": "de"}),
        *rows_of_features("ACCEPTED_REWARDS"),
        ("increasing_numbers", {"min_tokens": 20}),
        ("intent_accuracy", {"shape": True, "intent_coeff": 0.25, "auto_coeff": 0.75}),
        ("learned_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1, "include_prompt_for_eval": True}),
        ("learned_batched_reward", {"model_name": "lvwerra/distilbert-imdb", "label_ix": 1}),
        ("sacre_bleu", {"tokenize": "intl"}),
        # OpenRL's.
        ("nlp_reward", {"ref_model": "rajkumarrrk/gpt2-fine-tuned-on-daily-dialog", "intent_model": "./intent"}),
    ],
}


def test_arguments_of_rl4lms_and_openrl_configs_are_accepted():
    for registry, rows in ACCEPTED.items():
        for id, arguments in rows:
            registry.check(id, arguments)


# -- in forked workers ------------------------------------------------------------------------------------------------

N_WORKERS = 4


class Asked(gym.Wrapper):
    share: int

    def own_scores(self, shares, names):
        parts = [part for part in self.unwrapped.env.reward_parts if part.name in names]
        return scores_of(parts, shares[self.share])

    def talk(self):
        partner = self.unwrapped.env.conversation.partner
        partner.reset({}, 0)
        return [partner.reply([]) for _ in range(3)]


def scores_of(parts, texts):
    references = [
        [f"{text[: len(text) // 2]} today {other}"] for text, other in zip(texts, reversed(texts), strict=True)
    ]
    n = len(texts)
    return Scorer(parts).score(FinishedReplies(REPLY_PROMPTS[:1] * n, texts, references, INFOS[:1] * n, texts)).parts


def english_texts(n):
    lines = (meteor._DEBIAN_WORDNET / "index.adj").read_text("utf-8").splitlines()
    words = [line.split()[0] for line in lines if line[0] != " "]
    return [" ".join(words[(37 * i + 101 * k) % len(words)] for k in range(6)) for i in range(n)]


@pytest.mark.skipif(not meteor._DEBIAN_WORDNET.is_dir(), reason="METEOR needs Debian's wordnet-base")
@pytest.mark.long
@pytest.mark.parametrize("n_replies", [100, 1000])
def test_forked_workers_score_as_one_process_does(args, n_replies):
    parts = []
    for id in (*SAME_AS_METRIC, *OTHERS):
        reward = RewardFunctionRegistry.get(id, {} if id == "meteor" else of_reward(id, args))
        parts += [dataclasses.replace(part, name=f"{id}/{part.name}") for part in as_parts(reward, id)]
    parts = [part for part in parts if not part.in_main_process]
    of_texts = [part for part in parts if not part.name.startswith("missing_eos_penalty")]
    names = [part.name for part in of_texts]
    assert len(names) > 12 and "meteor/meteor" in names
    shares = [english_texts(n_replies)[i::N_WORKERS] for i in range(N_WORKERS)]
    replies = ["w1", "w2"]
    kwargs = make_env_kwargs(reward_parts=parts, max_turns=3, partner=ScriptedPartner(replies))
    env = BlockVecEnv([lambda: Asked(make_utterance_env(kwargs))] * N_WORKERS, N_WORKERS)
    try:
        for i in range(N_WORKERS):
            env.set_attr("share", i, i)
        found = env.env_method("own_scores", shares, names)
        assert env.env_method("talk") == [[*replies, None]] * N_WORKERS
    finally:
        env.close()
    for own, share in zip(found, shares, strict=True):
        assert own == scores_of(of_texts, share)
    assert len({score for own in found for score in own["meteor/meteor"]}) > 3
