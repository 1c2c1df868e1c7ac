"""BLEU, chrF, TER and ROUGE against their libraries and by hand, as metrics and as rewards."""

import pytest
from nltk.translate.bleu_score import corpus_bleu
from replies import pay
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.scores import overlap
from rl4dialog.scores.overlap import (
    ROUGE_TYPES,
    BleuMetric,
    ChrfMetric,
    RougeMetric,
    SacreBleuMetric,
    TerMetric,
)

BLEU_TEXTS = ["the cat sat on the mat today .", "a dog ran to the red house"]
BLEU_REFERENCES = [["the cat sat on the mat .", "a cat sat on the mat today"], ["a dog ran to a house"]]


def test_corpus_score_is_unsmoothed_bleu_of_whitespace_words():
    _, corpus = BleuMetric().compute(["", ""], BLEU_TEXTS, BLEU_REFERENCES)["lexical/bleu"]
    words = [[reference.split() for reference in references] for references in BLEU_REFERENCES]
    assert 0 < corpus < 1
    assert corpus == pytest.approx(corpus_bleu(words, [text.split() for text in BLEU_TEXTS]))
    scores, corpus = BleuMetric().compute([""], ["a b c x e f"], [["a b c d e f"]])["lexical/bleu"]
    assert corpus == 0
    assert scores is not None and scores[0] > 0


SACRE_TEXTS = ["The cat sat on the mat.", "A dog ran home", "naïve 😀"]
SACRE_REFERENCES = [["the cat sat on a mat.", "The cat sat."], ["A dog ran to its home"], ["naive 😀"]]
STREAMS = [[refs[i] if i < len(refs) else None for refs in SACRE_REFERENCES] for i in range(2)]


@pytest.mark.parametrize(
    ("metric", "library", "args"),
    [
        *(
            (SacreBleuMetric, BLEU, args)
            for args in ({}, {"lowercase": True}, {"tokenize": "char", "max_ngram_order": 2})
        ),
        *(
            (ChrfMetric, CHRF, args)
            for args in ({}, {"word_order": 2}, {"lowercase": True, "beta": 1, "whitespace": True})
        ),
        *((TerMetric, TER, args) for args in ({}, {"case_sensitive": True}, {"normalized": True, "no_punct": True})),
    ],
)
def test_scores_are_those_of_the_library(metric, library, args):
    ((scores, corpus),) = metric(**args).compute([""] * 3, SACRE_TEXTS, SACRE_REFERENCES).values()
    assert corpus == pytest.approx(library(**args).corpus_score(SACRE_TEXTS, STREAMS).score / 100)
    sentence = library(**args, **({"effective_order": True} if library is BLEU else {}))
    pairs = zip(SACRE_TEXTS, SACRE_REFERENCES, strict=True)
    assert scores == pytest.approx([sentence.sentence_score(*pair).score / 100 for pair in pairs])


@pytest.mark.parametrize("args", [{}, {"effective_order": True}, {"smooth_method": "none"}, {"max_ngram_order": 2}])
@pytest.mark.parametrize("reply", ["the cat sat", "the cat sat on", "the cat sat on a mat", "a mat on the sat"])
def test_reward_is_sacrebleu_of_a_corpus_with_one_reply(args, reply):
    paid = pay(RewardFunctionRegistry.get("sacre_bleu", args), reply, references=["the cat sat", "a cat sat on"])
    expected = BLEU(**args).corpus_score([reply], [["the cat sat"], ["a cat sat on"]]).score / 100
    assert paid == pytest.approx(expected)
    if reply == "the cat sat":
        assert (paid == 0) == ("effective_order" not in args and "max_ngram_order" not in args)


@pytest.mark.parametrize(
    ("id", "build", "args"),
    [
        ("sacre_bleu", SacreBleuMetric, {"tokenize": "bogus"}),
        ("sacre_bleu", SacreBleuMetric, {"smooth_method": "bogus"}),
        ("sacre_bleu", SacreBleuMetric, {"max_ngram_order": "x"}),
        ("chrf", ChrfMetric, {"char_order": "six"}),
    ],
)
def test_wrong_argument_is_refused_at_once(id, build, args):
    with pytest.raises(ConfigError, match=f"'{id}' does not accept.*{next(iter(args))}"):
        build(**args)


ROUGE_TEXTS = ["the cat sat on the mat", "dogs\nwalk home"]
ROUGE_REFERENCES = [["a cat sits on a mat", "the cat sat"], ["the dog\nwalks home"]]


def test_rouge_is_that_of_the_library():
    found = RougeMetric().compute(["", ""], ROUGE_TEXTS, ROUGE_REFERENCES)
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    for name in ROUGE_TYPES:
        expected = [
            scorer.score(refs[0], text)[name].fmeasure for text, refs in zip(ROUGE_TEXTS, ROUGE_REFERENCES, strict=True)
        ]
        scores, corpus = found[f"lexical/rouge_{name}"]
        assert scores == pytest.approx(expected)
        assert corpus == pytest.approx(sum(expected) / 2)


def test_stems_and_references_of_rouge():
    for stems, expected in ((True, 1.0), (False, 0.0)):
        found = RougeMetric(use_stemmer=stems).compute([""], ["cats walking"], [["cat walks"]])
        assert found["lexical/rouge_rouge1"] == ([expected], expected)
    scores, _ = RougeMetric(use_single_ref=False).compute([""], ROUGE_TEXTS[:1], ROUGE_REFERENCES[:1])[
        "lexical/rouge_rouge1"
    ]
    # The second reference: precision 3/6, recall 3/3.
    assert scores == pytest.approx([2 / 3])


def test_other_scripts_have_no_words_and_a_warning_names_a_metric_that_reads_them(caplog):
    overlap._warn_once.cache_clear()
    RougeMetric().compute(["", ""], ["A 1", "..."], [["É a"], ["..."]])
    assert not caplog.records
    found = RougeMetric().compute(["", ""], ["テスト", "naïve"], [["テスト"], ["na ve"]])
    assert next(iter(found.values()))[0] == [0.0, 1.0]
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "use chrf, which" in caplog.text
    assert MetricRegistry.get("chrf").compute([""], ["テスト"], [["テスト"]])["lexical/chrf"][1] == pytest.approx(1)


def test_rouge_has_the_variant_that_was_asked_for():
    swapped = "mat the on sat cat the"
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge1"}), swapped) == pytest.approx(1.0)
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge2"}), swapped) < 1.0
    with pytest.raises(ConfigError, match=r"rouge_type: .*, got 'rouge3'; did you mean 'rouge"):
        RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge3"})
    reply = "the mat sat on a cat"
    variants = [
        pay(RewardFunctionRegistry.get("rouge", {"rouge_type": t}), reply) for t in ("rouge1", "rouge2", "rougeL")
    ]
    assert len(set(variants)) == 3
    assert pay(RewardFunctionRegistry.get("rouge_combined"), reply) == pytest.approx(sum(variants) / 3)
