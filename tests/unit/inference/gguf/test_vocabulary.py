import json

import pytest
from gguf import GGUFWriter, TokenType
from gguf_file import CORPUS, TEMPLATE
from gguf_models import byte_level, llama3, qwen2, sentencepiece, with_marker
from tiny import make_tokenizer
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4dialog.core.errors import ModelError
from rl4dialog.inference.gguf.vocabulary import add_vocabulary
from rl4dialog.text.tokenizer import build_tokenizer


def added(tokenizer, n_rows=None, end_of_turn=None):
    writer = GGUFWriter(None, "llama")
    notes = add_vocabulary(writer, tokenizer, n_rows or len(tokenizer), end_of_turn)
    fields = {key: value.value for key, value in writer.kv_data[0].items() if key.startswith("tokenizer.")}
    return {key.removeprefix("tokenizer.").removeprefix("ggml."): value for key, value in fields.items()}, notes


@pytest.mark.parametrize(
    ("tokenizer", "pre"),
    [
        (byte_level, "gpt-2"),
        (lambda: byte_level(digits=True), "smollm"),
        (qwen2, "qwen2"),
        (llama3, "llama-bpe"),
        (lambda: build_tokenizer("builtin/tiny-gpt2", vocab_size=300, corpus=CORPUS), "gpt-2"),
    ],
)
def test_byte_level_bpe_names_its_rules_of_splitting(tokenizer, pre):
    made = tokenizer()
    fields, notes = added(made)
    assert (fields["model"], fields["pre"], notes) == ("gpt2", pre, [])
    assert fields["tokens"] == made.convert_ids_to_tokens(range(len(made)))
    assert fields["merges"] and all(merge.count(" ") == 1 for merge in fields["merges"])
    assert "scores" not in fields


def test_special_tokens_chat_templates_and_rows_without_a_token():
    tokenizer = byte_level()
    fields, _ = added(tokenizer, len(tokenizer) + 2)
    ids = {key: value for key, value in fields.items() if key.endswith("_id")}
    assert ids == {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 0}
    assert (fields["add_bos_token"], fields["add_eos_token"], fields["chat_template"]) == (False, False, TEMPLATE)
    assert fields["token_type"][:4] == [TokenType.CONTROL] * 3 + [TokenType.NORMAL]
    assert fields["tokens"][-2:] == [f"[PAD{len(tokenizer)}]", f"[PAD{len(tokenizer) + 1}]"]
    assert fields["token_type"][-3:] == [TokenType.NORMAL, TokenType.UNUSED, TokenType.UNUSED]
    tokenizer.chat_template = {"default": TEMPLATE, "rag": "{{ documents }}"}
    fields, _ = added(tokenizer)
    assert fields["chat_template"] == TEMPLATE and fields["chat_template.rag"] == "{{ documents }}"


def test_turn_marker_ends_replies_and_its_spaces_are_noted():
    tokenizer = with_marker(byte_level())
    fields, notes = added(tokenizer, end_of_turn="<EOU>")
    assert fields["eot_token_id"] == len(tokenizer) - 1
    assert fields["token_type"][-1] == TokenType.USER_DEFINED
    assert len(notes) == 1 and "no space beside '<EOU>'" in notes[0]
    fields, notes = added(byte_level(), end_of_turn="<EOU>")
    assert "eot_token_id" not in fields
    assert notes == ["Replies end with '<EOU>', which is no token here: set it as a stop text."]


def test_sentencepiece_merges_by_scores():
    tokenizer = sentencepiece()
    fields, notes = added(tokenizer)
    assert (fields["model"], fields["add_space_prefix"], fields["add_bos_token"]) == ("llama", True, True)
    assert "merges" not in fields and notes == []
    types = fields["token_type"]
    assert types[:3] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    assert types[3:259] == [TokenType.BYTE] * 256 and set(types[259:]) == {TokenType.NORMAL}
    scores = dict(zip(fields["tokens"], fields["scores"], strict=True))
    learned = [scores[token] for token in fields["tokens"] if len(token) > 1 and scores[token]]
    assert learned == sorted(learned, reverse=True) and len(set(learned)) == len(learned) > 20


def test_sentencepiece_that_prepends_at_the_start_only_is_noted():
    split = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    fields, notes = added(sentencepiece(pre_tokenizer=split))
    assert fields["add_space_prefix"] and "a space after each special token" in notes[0]
    plain, notes = added(sentencepiece(normalizer=normalizers.Replace(" ", "▁")))
    assert not plain["add_space_prefix"] and notes == []


def _with(**changes):
    tokenizer = byte_level()
    for name, value in changes.items():
        setattr(tokenizer.backend_tokenizer, name, value)
    return tokenizer


def _with_less_merges():
    settings = json.loads(sentencepiece().backend_tokenizer.to_str())
    settings["model"]["merges"].pop()
    backend = Tokenizer.from_str(json.dumps(settings))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (make_tokenizer, "This one is WordLevel and splits texts by: another WhitespaceSplit"),
        (
            lambda: build_tokenizer("builtin/characters", corpus=CORPUS),
            r"byte-level BPE that splits texts as gpt-2, smollm, llama-bpe, qwen2 do.*builtin/characters",
        ),
        (lambda: build_tokenizer("builtin/words", corpus=CORPUS), "a token per word or character"),
        (lambda: byte_level(regex="a+"), r"splits texts by: a\+, bytes"),
        (lambda: byte_level(ignore_merges=True), "splits texts by: GPT-2"),
        (lambda: _with(normalizer=normalizers.Lowercase()), "no GGUF form"),
        (lambda: sentencepiece(pre_tokenizer=pre_tokenizers.Metaspace()), "splits texts by: another Metaspace"),
        (_with_less_merges, "no GGUF form"),
    ],
)
def test_what_llama_cpp_cannot_split_is_refused(tokenizer, message):
    with pytest.raises(ModelError, match=message):
        added(tokenizer())


def test_tokenizers_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="tokens, but the model only 7 embeddings"):
        added(byte_level(), 7)
    endless = PreTrainedTokenizerFast(tokenizer_object=byte_level().backend_tokenizer)
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        added(endless)
