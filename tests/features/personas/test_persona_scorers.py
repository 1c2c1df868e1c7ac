"""Potentials by hand, and likelihoods against a naive loop."""

import math

import numpy as np
import pytest
import torch
from judges import save_judge
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.types import AGENT, PARTNER, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.personas.persona_ranking import Case, EmbeddingScorer, LikelihoodScorer
from rl4dialog.scores.language_models import FrozenLanguageModel
from rl4dialog.text.prompts import encode_prompt, encode_reply

VECTORS = {
    "a": (1.0, 0.0),
    "b": (0.0, 1.0),
    "c": (0.6, 0.8),
    "hm": (0.0, 0.0),
    "a hm": (1.0, 0.0),
    "a hm b": (0.6, 0.8),
}


def embed(texts):
    return np.array([VECTORS[text] for text in texts])


def said(*texts):
    turns = [Turn("?", AGENT) if i % 2 == 0 else Turn(texts[i // 2], PARTNER) for i in range(2 * len(texts))]
    return Case(turns, range(1, len(turns), 2), [("a", "b"), ("c",)])


def scorer(margin=1.0):
    return EmbeddingScorer(embed, margin)


def embed_by(vectors):
    return lambda texts: np.stack([vectors[text] for text in texts])


def test_what_was_said_before_changes_nothing_not_even_a_last_digit():
    random = np.random.default_rng(0)
    for _ in range(200):
        vectors = {str(i): random.normal(size=37) for i in range(30)}
        texts = random.integers(0, 4, 7).astype(str).tolist()
        turns = [Turn(text, PARTNER) for text in texts]
        case = Case(turns, range(7), [("10", "11", "12"), *((str(i), str(i + 1)) for i in range(13, 28))])
        (fit,) = EmbeddingScorer(embed_by(vectors), 1.0)([case])
        for i, text in enumerate(texts):
            if text in texts[:i]:
                assert fit.potential[i + 1] == fit.potential[i]


def test_embedding_scores_are_those_computed_by_hand():
    (fit,) = scorer()([said("a", "hm", "b")])
    # Nearest utterances to a, b and c: 0, 0, 0; then 1, 0, 0.6; then the same; then 1, 1, 0.8.
    assert fit.scores == pytest.approx(np.array([[-1, -1], [-0.5, -0.4], [-0.5, -0.4], [0, -0.2]]))
    assert fit.potential == pytest.approx([-1, -(0.6 + 1.6) / 2, -(0.6 + 1.6) / 2, -0.8])
    (fit,) = scorer(margin=0.5)([said("a", "hm", "b")])
    assert fit.potential == pytest.approx([-0.5, -(0.1 + 1.1) / 2, -(0.1 + 1.1) / 2, -0.3])


@pytest.mark.parametrize("margin", [1.0, 0.5])
def test_triplet_losses_are_those_of_torch(margin):
    case = said("a", "hm", "b")._replace(candidates=[("a", "b"), ("c",), ("b",), ("c",)])
    states, true = torch.tensor([(0.0, 0.0), *(VECTORS[text] for text in ("a", "a hm", "a hm b"))]), embed(["a", "b"])
    # The third false fact makes no whole block of two.
    loss = torch.nn.TripletMarginLoss(margin=margin, reduction="sum")
    expected = [float(loss(s[None].double(), torch.tensor(true), torch.tensor(embed(["c", "b"])))) for s in states]
    assert scorer(margin).triplet_losses(case) == pytest.approx(expected, abs=1e-5)


TURNS = [
    Turn("Hi. How are you?", PARTNER),
    Turn("Fine.", AGENT),
    Turn("Hm.", PARTNER),
    Turn("And you?", AGENT),
    Turn("you are, I", PARTNER),
]
PERSONAS = [("I am fine.", "You are a reply."), ("Hm.",), ("Hello, you.",)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")


def likelihood(folder, temperature=1.0):
    return LikelihoodScorer(FrozenLanguageModel(folder, "it"), "eou", temperature, "it")


def written(before, persona, opens):
    texts = [f"{text}{' ' if (len(before) - i) % 2 else ''}<EOU>" for i, text in enumerate(before)]
    return "".join([f"{persona}{' ' if opens else ''}<EOU>", *texts])


@torch.no_grad()
def naive_log_likelihood(folder, prompt, text, room=None):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = encode_prompt(tokenizer, prompt, room) if room else tokenizer(prompt)["input_ids"]
    reply = encode_reply(tokenizer, text, "<EOU>", None, prompt)
    log_probs = model(torch.tensor([ids + reply])).logits[0].log_softmax(-1)
    return sum(float(log_probs[len(ids) + i - 1, id]) for i, id in enumerate(reply))


@pytest.mark.parametrize("read", [(0, 2, 4), (2, 4), (1, 3), (4,)])
def test_likelihoods_are_those_of_a_naive_loop(folder, read):
    (fit, same) = likelihood(folder, temperature=2.0)([Case(TURNS, read, PERSONAS)] * 2)
    texts = [turn.text for turn in TURNS]
    for candidate, persona in enumerate(PERSONAS):
        prompts = [written(texts[:i], " ".join(persona), read[0] == 0) for i in read]
        each = [naive_log_likelihood(folder, prompt, texts[i]) for prompt, i in zip(prompts, read, strict=True)]
        assert fit.scores[1:, candidate] == pytest.approx(np.cumsum(each) / 2, rel=1e-4)
    posterior = np.exp(fit.scores[-1]) / np.exp(fit.scores[-1]).sum()
    assert fit.potential[-1] == pytest.approx(math.log(posterior[0]), rel=1e-4)
    assert same.potential == pytest.approx(fit.potential)


def test_long_conversations_lose_their_oldest_turns(tmp_path):
    folder = save_judge(tmp_path, template=None, n_positions=90)
    (fit,) = likelihood(folder)([Case(TURNS, (2, 4), PERSONAS)])
    tokenizer, texts, persona = (
        AutoTokenizer.from_pretrained(folder),
        [turn.text for turn in TURNS],
        " ".join(PERSONAS[0]),
    )
    room = 90 - max(len(encode_reply(tokenizer, texts[i], "<EOU>")) for i in (2, 4))
    prompts = [DialogueFormat("eou", None, None, in_conversation=True).prompt(texts[:i], persona) for i in (2, 4)]
    assert len(encode_prompt(tokenizer, prompts[1], None)) > room, "the last utterance needs a second row"
    each = [naive_log_likelihood(folder, *pair, room) for pair in zip(prompts, (texts[2], texts[4]), strict=True)]
    assert fit.scores[1:, 0] == pytest.approx(np.cumsum(each), rel=1e-4)


def test_silence_between_two_utterances_is_an_empty_utterance(folder):
    turns = [TURNS[0], TURNS[1], TURNS[3], TURNS[4]]  # the partner said nothing to the first
    silent = [*turns[:2], Turn("", PARTNER), *turns[2:]]
    found, expected = likelihood(folder)([Case(turns, (0, 3), PERSONAS), Case(silent, (0, 4), PERSONAS)])
    assert found.scores == pytest.approx(expected.scores)
