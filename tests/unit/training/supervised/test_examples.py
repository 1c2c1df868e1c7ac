"""Examples of supervised training, of replies and of whole conversations."""

import random

import numpy as np
import pytest
from conversations import built
from tiny import make_env, make_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.types import Dialogue, Prompt, PromptTurn, Sample, Turn
from rl4dialog.data.dialogue_format import dialogue_samples
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.scripted import ReplayPartner
from rl4dialog.training.supervised.examples import IGNORED_LABEL, PaddingCollator, build_examples, encode_reply

MARKER = "<EOU>"


def make_marker_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(MARKER, lstrip=True, normalized=False)])
    return tokenizer


def make_byte_tokenizer():
    """Every character is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def build(samples, tokenizer, **overrides):
    arguments = {"end_of_turn": None, "max_prompt_length": 6, "max_reply_length": 5, **overrides}
    return build_examples(samples, tokenizer, **arguments)[0]


def words(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize(
    ("prompt", "reply", "limits", "read", "learned"),
    [
        ("w1 w2", "w3 w4", {}, "w1 w2", "w3 w4 <eos>"),
        ("w1 <EOU>", "w3", {"end_of_turn": MARKER}, "w1 <EOU>", "w3 <EOU>"),
        ("w1 w2 w3 w4", "w5", {"max_prompt_length": 2}, "w3 w4", "w5 <eos>"),
        ("w1 w2 w3", "w5", {"max_prompt_length": 2, "prompt_truncation_side": "right"}, "w1 w2", "w5 <eos>"),
        ("w1", "w0 w1 w2 w3", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 <eos>"),
        ("w1", "w0 w1 w2 w3 w4", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 w4"),
        ("w1", "w0 w1 w2 w3 w4 w5", {"max_reply_length": 5}, "w1", "w0 w1 w2 w3 w4"),
        ("w1 w2 w3 w4", "w5 w6", {"max_length": 3, "in_encoder": True}, "w2 w3 w4", "w5 w6 <eos>"),
    ],
)
def test_labels_are_the_reply_and_its_end(prompt, reply, limits, read, learned):
    tokenizer = make_marker_tokenizer()
    (example,) = build([Sample(0, prompt, [reply])], tokenizer, **limits)
    ids, labels = example["input_ids"], example["labels"]
    n = len(read.split())
    if not limits.get("in_encoder"):
        assert labels[:n] == [IGNORED_LABEL] * n and ids[n:] == labels[n:]
        labels = labels[n:]
    assert (words(tokenizer, ids[:n]), words(tokenizer, labels)) == (read.split(), learned.split())


@pytest.mark.parametrize(
    ("references", "limits", "error", "message"),
    [
        (["w2 w3"], {"max_length": 2}, DataError, r"each of the 1 references has more than the 2 tokens.*max_length"),
        (["w2"], {"end_of_turn": MARKER}, ModelError, "cannot write '<EOU>'"),
        ([], {}, DataError, "no sample of the datapool has a reference that is not empty"),
        (["", " "], {}, DataError, "no sample of the datapool has a reference that is not empty"),
    ],
)
def test_what_cannot_be_learned_is_an_error(references, limits, error, message):
    with pytest.raises(error, match=message):
        build([Sample(0, "w1", references)], make_tokenizer(), **limits)


NO_LIMITS = {"max_prompt_length": None, "max_reply_length": None}


def test_prompt_gives_way_to_the_reference_its_oldest_turns_first():
    tokenizer = make_marker_tokenizer()
    sample = Sample(7, "w1 w2 <EOU> w3 w4 <EOU>", ["w5", "w5 w6", "w5 w6 w7 w8 w9", " ".join(["w5"] * 7)])
    limits = {**NO_LIMITS, "end_of_turn": MARKER, "max_length": 8, "whole_turns": True}
    examples, truncation = build_examples([sample], tokenizer, **limits)
    assert [words(tokenizer, example["input_ids"]) for example in examples] == [
        ["w1", "w2", MARKER, "w3", "w4", MARKER, "w5", MARKER],
        ["w3", "w4", MARKER, "w5", "w6", MARKER],
        ["w4", MARKER, "w5", "w6", "w7", "w8", "w9", MARKER],
    ]
    assert (truncation.n_prompts_cut, truncation.n_references_cut, truncation.left_out) == (2, 0, [7])
    assert str(truncation) == ("of 4 references: 2 with a cut prompt; 1 left out, too long by themselves (samples 7)")


def test_reply_that_leaves_no_room_for_a_turn_after_a_persona_is_left_out():
    tokenizer = make_tokenizer(marker="<EOU>")
    prompt = Prompt([PromptTurn("w1", " <EOU>")], ("", "w0 w0 w0", " <EOU>"))
    shape = {"end_of_turn": "<EOU>", "max_prompt_length": 9, "max_reply_length": None, "max_length": 10}
    samples = [Sample("fits", prompt, ["w2"]), Sample("long", prompt, ["w2 w3 w4 w5 w6"])]
    examples, truncation = build_examples(samples, tokenizer, **shape)
    assert (len(examples), truncation.left_out) == (1, ["long"])
    with pytest.raises(DataError, match="leaves no room for a turn in max_prompt_length: 4"):
        build_examples(samples, tokenizer, **{**shape, "max_prompt_length": 4})


@pytest.mark.parametrize("max_reply_length", range(1, 9))
def test_marker_of_several_tokens_is_learned_whole_or_not_at_all(max_reply_length):
    tokenizer = make_byte_tokenizer()
    (example,) = build([Sample(0, "a", ["xyz"])], tokenizer, end_of_turn=MARKER, max_reply_length=max_reply_length)
    expected = "xyz<EOU>" if max_reply_length >= 8 else "xyz"[:max_reply_length]
    assert tokenizer.decode(example["input_ids"][1:]) == expected


def test_empty_references_are_left_out_and_counted():
    samples = [Sample(0, "w1", ["", "w2"]), Sample(1, "w3", [" \n"])]
    examples, truncation = build_examples(samples, make_tokenizer(), end_of_turn=None, **NO_LIMITS)
    assert len(examples) == 1 and str(truncation) == "of 3 references: 2 left out, empty"
    limits = {**NO_LIMITS, "max_reply_length": 2}
    _, truncation = build_examples([Sample(0, "w1", ["w2 w3 w4", "w2"])], make_tokenizer(), end_of_turn=None, **limits)
    assert str(truncation) == "of 2 references: 1 without their end, which is then not learned"


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_batches_are_padded_right_with_a_mask_from_the_lengths(pad_is_eos):
    tokenizer = make_tokenizer(pad_is_eos)
    examples = build([Sample(0, "w1 w2", ["w3 w4"]), Sample(1, "w1", ["w2"])], tokenizer)
    batch = PaddingCollator(tokenizer.pad_token_id)(examples)
    eos, pad, ignored = tokenizer.eos_token_id, tokenizer.pad_token_id, IGNORED_LABEL
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["input_ids"][1].tolist() == [*examples[1]["input_ids"], pad, pad]
    # The end of the reply is learned even where the same id pads.
    assert batch["labels"][1].tolist() == [ignored, examples[1]["input_ids"][1], eos, ignored, ignored]


LINES = ["I am fine , thanks .", "Do you like tea ?", "no , i do not .", "It's 7 o'clock", "the sea", "why ?", "oh"]
CASES = [
    ("eou", "byte_level"),
    ("chatml", "llama"),
    ("llama2", "unigram"),
    ("gemma", "byte_level"),
    ("zephyr", "llama"),
]

RULES = [
    {},
    {"max_partner_length": 4},
    {"end_when": {"partner": ["(the )?sea.*"]}},
    {"end_when": {"agent": ["^o"]}},
    {"max_partner_length": 6, "context_turns": 3, "end_when": {"partner": ["why"], "agent": ["sea$"]}},
]


def dialogues(form, n, length):
    generator = random.Random(0)
    told = [
        Dialogue(i, tuple(Turn(generator.choice(LINES), j % 2) for j in range(generator.randint(2, length))))
        for i in range(n)
    ]
    return dialogue_samples(told, form.dialogue, "dialogues")


def rolled_out(sample, form, **limits):
    """Prompts and replies of a rollout in which the agent says what the dataset says, until it is over."""
    texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]
    env = make_env(
        form.tokenizer,
        end_of_turn=form.end,
        samples=[sample],
        reward_parts=[],
        partner=ReplayPartner(),
        max_turns=20,
        frame=form.dialogue.frame(),
        vocab_size=len(form.tokenizer),
        max_episode_length=40,
        **{"max_prompt_length": 400, **limits},
    )
    view, found = UtteranceView(env), []
    view.reset(options={"sample": sample})
    for i, text in enumerate(texts):
        prompt = env.state.prompt_ids
        reply = encode_reply(form.tokenizer, text, form.marker, 40, sample.prompt_or_input_text)
        found.append((prompt, reply))
        *_, over, _, info = view.step(np.array([*reply, *[-1] * (40 - len(reply))]))
        assert info["gen_text"] == text and (over or i + 1 < len(texts))
        if over:
            break
    return found


def rows_of(turns):
    """Ids and labels of turns, one row as long as prompts continue what was before them."""
    rows = []
    for prompt, reply in turns:
        goes_on = bool(rows) and prompt[: len(rows[-1][0])] == rows[-1][0]
        ids, labels = rows.pop() if goes_on else ([], [])
        rows.append(([*prompt, *reply], [*labels, *[IGNORED_LABEL] * (len(prompt) - len(ids)), *reply]))
    return rows


def learned_rows(sample, form, max_prompt_length=400, **rules):
    """Ids and labels of the examples of a sample."""
    examples, _ = build_examples(
        [sample],
        form.tokenizer,
        end_of_turn=form.marker,
        max_prompt_length=max_prompt_length,
        max_reply_length=40,
        frame=form.dialogue.frame(),
        rules=ConversationRules(**rules),
    )
    return [(example["input_ids"], example["labels"]) for example in examples]


@pytest.mark.parametrize("limits", [{}, {"max_prompt_length": 60}, {"context_turns": 3}], ids=["all", "long", "turns"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_are_those_of_a_rollout(name, kind, limits):
    form = built(name, kind)
    samples = dialogues(form, 8, 10)
    n_rows = 0
    for sample in samples:
        learned = learned_rows(sample, form, **limits)
        assert learned == rows_of(rolled_out(sample, form, **limits))
        n_rows += len(learned)
    assert n_rows == len(samples) if not limits else n_rows > len(samples)


@pytest.mark.parametrize("rules", RULES, ids=["markup", "length", "partner ends", "agent ends", "all"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_partners_texts_are_those_of_a_rollout(name, kind, rules):
    form = built(name, kind)
    markup, n_changed = form.dialogue.frame().markup, 0
    for i, sample in enumerate(dialogues(form, 8, 10)):
        assert sample.meta_data is not None
        plain = learned_rows(sample, form)
        continuation = sample.meta_data["continuation"]
        continuation[::2] = [f"{text}{markup[i % len(markup)]} tea" for text in continuation[::2]]
        learned = learned_rows(sample, form, **rules)
        assert learned == rows_of(rolled_out(sample, form, **rules))
        n_changed += learned != plain
    assert n_changed > 2


def test_encoders_have_one_example_per_turn():
    form = built("eou", "byte_level")
    for sample in dialogues(form, 6, 9):
        examples, _ = build_examples(
            [sample],
            form.tokenizer,
            end_of_turn=form.marker,
            max_prompt_length=400,
            max_reply_length=40,
            in_encoder=True,
            frame=form.dialogue.frame(),
        )
        found = [(example["input_ids"], example["labels"]) for example in examples]
        rolled = rolled_out(sample, form)
        # A decoder starts its reply alone, and not after the prompt.
        texts = [sample.references[0], *sample.meta_data["continuation"][1::2]]
        assert [labels for _, labels in found] == [encode_reply(form.tokenizer, text, form.marker) for text in texts]
        assert found[0][0] == rolled[0][0] and len(found) == len(rolled)
