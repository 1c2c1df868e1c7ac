from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import make_tokenizer
from tokenizers.processors import TemplateProcessing

from rl4dialog.core.cache import cache_root
from rl4dialog.core.errors import ModelError
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.text.tokenizer import build_tokenizer, tokenizer_hash

CORPUS = ["do you like the blue bike?<EOU>yes, i like it <EOU>", "i like the red one too"] * 20


def test_builtin_tokenizer_keeps_the_marker_as_one_token_whatever_stands_before_it() -> None:
    tokenizer = build_tokenizer("builtin/tiny-gpt2", vocab_size=300, corpus=CORPUS, turn_marker="<EOU>")
    marker = tokenizer.convert_tokens_to_ids("<EOU>")
    assert tokenizer("a <EOU>")["input_ids"] == tokenizer("a<EOU>")["input_ids"]
    assert tokenizer("a<EOU>b")["input_ids"].count(marker) == 1
    assert len(tokenizer) <= 300
    assert tokenizer.decode(tokenizer("crème brûlée 🙂")["input_ids"]) == "crème brûlée 🙂"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_builtin_tokenizer_without_texts_is_an_error() -> None:
    with pytest.raises(ModelError, match="there are none"):
        build_tokenizer("builtin/tiny-gpt2", corpus=[])


def test_damaged_cache_is_rebuilt() -> None:
    first = build_tokenizer("builtin/tiny-gpt2", vocab_size=290, corpus=CORPUS)
    for folder in cache_root().glob("tokenizer-*"):
        (folder / "tokenizer.json").write_text(json.dumps({"broken": True}))
    again = build_tokenizer("builtin/tiny-gpt2", vocab_size=290, corpus=CORPUS)
    assert first.get_vocab() == again.get_vocab()


def test_tokenizer_loads_from_a_folder(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    tokenizer = build_tokenizer(str(tmp_path), max_length=17)
    assert tokenizer.model_max_length == 17
    assert tokenizer.padding_side == "left"


def test_missing_tokenizer_names_what_would_work() -> None:
    with pytest.raises(ModelError, match=r"no/such/folder.*builtin/tiny-gpt2"):
        build_tokenizer("no/such/folder")


def test_tokenizer_without_pad_token_pads_with_eos_or_refuses(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert build_tokenizer(str(tmp_path)).pad_token == "<eos>"
    with pytest.raises(ModelError, match="pad_token_as_eos_token: true"):
        build_tokenizer(str(tmp_path), pad_token_as_eos_token=False)


@pytest.mark.parametrize(("side", "expected"), [("left", [5, 6]), ("right", [3, 4])])
def test_long_prompt_is_cut_on_the_chosen_side(side: str, expected: list[int]) -> None:
    assert encode_prompt(make_tokenizer(), "w0 w1 w2 w3", 2, side) == expected


@pytest.mark.parametrize(("side", "expected"), [("left", [5, 6, 0]), ("right", [3, 4, 0])])
def test_cut_prompt_keeps_the_end_that_the_tokenizer_adds(side: str, expected: list[int]) -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 0)])
    assert encode_prompt(tokenizer, "w0 w1 w2 w3", 3, side) == expected


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [
        (None, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>"),
        (9, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>"),
        (8, "w2 w3 <EOU> w4 w5 <EOU>"),
        (5, "w4 w5 <EOU>"),
        (2, "w5 <EOU>"),
    ],
)
def test_whole_turns_are_dropped_where_their_end_is_known(max_length: int | None, expected: str) -> None:
    tokenizer = make_tokenizer(marker="<EOU>")
    ids = encode_prompt(tokenizer, "w0 w1 <EOU> w2 w3 <EOU> w4 w5 <EOU>", max_length, end_of_turn="<EOU>")
    assert tokenizer.decode(ids) == expected


def test_empty_prompt_starts_from_eos() -> None:
    assert encode_prompt(make_tokenizer(), "", 4) == [0]


def test_begin_of_sequence_is_not_doubled_behind_a_chat_template(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.bos_token = "<eos>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    assert encode_prompt(tokenizer, "w0 w1", 8) == [0, 3, 4]
    assert encode_prompt(tokenizer, "<eos> w0 w1", 8) == [0, 3, 4]


def test_hash_is_that_of_the_vocabulary_and_not_of_its_use(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    found = tokenizer_hash(tokenizer)
    assert len(found) == 16 and found == tokenizer_hash(make_tokenizer())
    tokenizer(["w1", "w2 w3"], padding=True, truncation=True, max_length=1)
    assert "padding" in tokenizer.backend_tokenizer.to_str() and tokenizer_hash(tokenizer) == found
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_hash(build_tokenizer(str(tmp_path))) == found
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_hash(tokenizer) != found != tokenizer_hash(make_tokenizer(marker="<EOU>"))


def test_tokenizer_without_a_rust_backend_has_the_hash_of_its_vocabulary() -> None:
    class Slow:
        def __init__(self, **vocab: int) -> None:
            self.get_vocab = lambda: vocab

    assert tokenizer_hash(Slow(a=0, b=1)) == tokenizer_hash(Slow(b=1, a=0)) != tokenizer_hash(Slow(a=1, b=0))  # type: ignore[arg-type]
