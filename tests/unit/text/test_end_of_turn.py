from types import SimpleNamespace

import pytest
from conversations import make_backend
from tiny import make_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids


def byte_tokenizer():
    """One token per byte, so that a marker is several tokens, as in GPT-2's vocabulary."""
    vocab = {"<eos>": 0, **{c: i + 1 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def test_end_is_the_last_token_of_a_marker_or_eos():
    tokenizer = byte_tokenizer()
    ends = EndOfTurn(tokenizer, [0], "<EOU>")
    ids = tokenizer("hi > there<EOU>")["input_ids"]
    assert [ends.is_end(ids[: n + 1]) for n in range(len(ids))] == [False] * (len(ids) - 1) + [True]
    assert ends.reply_text(ids) == "hi > there"
    ends = EndOfTurn(make_tokenizer(), [0, 7])
    assert [ends.is_end([5, id]) for id in (0, 7, 8)] == [True, True, False]
    assert not ends.is_end([])
    sources = (SimpleNamespace(eos_token_id=[4, 2]), SimpleNamespace(eos_token_id=None), SimpleNamespace())
    assert end_of_sequence_ids(make_tokenizer(), *sources) == [0, 2, 4]


@pytest.mark.parametrize(
    ("said", "marker", "text"),
    [
        ("i knew if <E", "<EOU>", "i knew if"),
        ("is 1 <", "<EOU>", "is 1"),
        ("a <EOX", "<EOU>", "a <EOX"),
        ("is 1 <<eos>", "<EOU>", "is 1 <"),  # the reply is complete
        ("they asked Us", "User:", "they asked Us"),  # may be a word
    ],
)
def test_the_begun_marker_of_a_truncated_reply_is_no_part_of_its_text(said, marker, text):
    tokenizer = byte_tokenizer()
    assert EndOfTurn(tokenizer, [0], marker).reply_text(tokenizer(said)["input_ids"]) == text


def test_single_token_marker_is_among_the_ids_that_are_held_back():
    tokenizer = make_tokenizer(marker="<EOU>")
    ends = EndOfTurn(tokenizer, [0], "<EOU>")
    assert ends.single_token_ids == {0, tokenizer.convert_tokens_to_ids("<EOU>")}
    assert EndOfTurn(byte_tokenizer(), [0], "<EOU>").single_token_ids == {0}


def test_special_token_of_a_chat_template_is_an_end_like_the_end_of_sequence():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    token = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ends = EndOfTurn(tokenizer, [0], "<|im_end|>")
    assert ends.eos_token_ids == ends.single_token_ids == {0, token} and ends.marker == "<|im_end|>"
    said = tokenizer("is 1 <")["input_ids"]
    assert ends.is_end([*said, token]) and ends.is_end([0]) and not ends.is_end(said)
    spelled = [tokenizer.convert_tokens_to_ids(letter) for letter in "<|im_end|>"]
    assert not ends.is_end(spelled), "what is spelled in letters is no markup"
    assert ends.reply_text([*said, token]) == ends.reply_text(said) == "is 1 <"


def test_text_that_ends_a_reply_is_found_in_tokens_of_bytes():
    tokenizer = make_backend("llama")
    ids = tokenizer("Tea ###", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[-1] == "<0x23>"
    ends = EndOfTurn(tokenizer, [], "###")
    assert [ends.is_end(ids[: n + 1]) for n in range(len(ids))] == [False] * (len(ids) - 1) + [True]
