import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from gguf import GGUFReader, GGUFWriter, TokenType
from gguf_file import CORPUS, TEMPLATE
from gguf_models import byte_level, llama3, qwen2, sentencepiece, tiny_model, with_marker
from tiny import make_tokenizer
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4dialog.core.errors import ModelError, RunFolderError
from rl4dialog.core.files import naming_errors, replaced
from rl4dialog.core.pretrained import DTYPES
from rl4dialog.features.export.gguf import (
    ARCHITECTURES,
    add_vocabulary,
    architecture_of,
    begun_file,
    check_file,
    log_probs,
    stored_weights,
    token_ids,
    write_weights,
)
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
        (lambda: build_tokenizer("builtin/characters", corpus=CORPUS), r"splits texts as gpt-2, .*builtin/characters"),
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


def stored(model):
    return dict(stored_weights(model, architecture_of(model)))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_is_stored_once(name, tied):
    model = tiny_model(name, byte_level(), tie_word_embeddings=tied)
    found = stored(model)
    assert len(found) == len(list(model.parameters()))
    assert ("output.weight" in found) != tied
    assert sum(weight.numel() for weight in found.values()) == model.num_parameters()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bloom", {}, r"architecture 'bloom'.*supported: gpt2, llama, mistral, qwen2, qwen3\).*convert_hf_to_gguf"),
        ("llama", {"attention_bias": True}, "attention_bias: True in its config.json.*means False"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type: linear"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: relu.*means gelu_new"),
        ("mistral", {"sliding_window": 4}, "attends to 4 of its 64 positions"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window: True"),
    ],
)
def test_other_models_are_refused(name, changes, message):
    with pytest.raises(ModelError, match=message):
        architecture_of(tiny_model(name, byte_level(), **changes))


def check(path, model, tokenizer, dtype="f32", architecture=None, written=None):
    writer, _ = begun_file(model, written or tokenizer, "tiny")
    write_weights(writer, path, stored_weights(model, architecture or architecture_of(model)), dtype)
    texts = token_ids(tokenizer)
    return check_file(path, texts, log_probs(model, texts), dtype)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_architecture_is_the_same_model(tmp_path, name, dtype):
    tokenizer = byte_level()
    kl = check(tmp_path / "model.gguf", tiny_model(name, tokenizer), tokenizer, dtype)
    assert kl < {"f32": 1e-10, "f16": 1e-4, "bf16": 2e-3, "q8_0": 2e-2}[dtype]


@pytest.mark.parametrize(
    "tokenizer",
    [lambda: byte_level(digits=True), qwen2, llama3, sentencepiece, lambda: with_marker(byte_level())],
    ids=["smollm", "qwen2", "llama-bpe", "sentencepiece", "marker"],
)
def test_every_tokenizer_reads_the_same_tokens(tmp_path, tokenizer):
    made = tokenizer()
    check(tmp_path / "model.gguf", tiny_model("llama", made), made)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"n_inner": 96, "activation_function": "gelu_pytorch_tanh"}),  # the activation of builtin/tiny-gpt2
        ("gpt2", {"n_positions": 12}),  # checked on the beginning of texts
        ("qwen3", {"head_dim": 16}),
        ("mistral", {"sliding_window": 64}),  # as many as positions, so it is none
    ],
)
def test_other_sizes_than_the_usual_ones_are_read(tmp_path, name, changes):
    tokenizer = byte_level()
    check(tmp_path / "model.gguf", tiny_model(name, tokenizer, **changes), tokenizer)


def test_weights_in_the_order_of_another_program_are_noticed(tmp_path):
    tokenizer = byte_level()
    wrong = dataclasses.replace(ARCHITECTURES["llama"], stored=lambda name, weight, config: weight)
    with pytest.raises(ModelError, match=r"differs from the run's by .* nats per token .*so the file was removed"):
        check(tmp_path / "model.gguf", tiny_model("llama", tokenizer), tokenizer, architecture=wrong)


def test_another_tokenizer_is_noticed(tmp_path):
    model = tiny_model("llama", byte_level())
    with pytest.raises(ModelError, match=r"reads .* as other tokens than the run's"):
        check(tmp_path / "model.gguf", model, byte_level(), written=byte_level(digits=True))


def test_unreadable_file_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="transformers cannot read the exported file"):
        check_file(tmp_path / "model.gguf", [], [], "f32")


WEIGHTS = [
    ("token_embd.weight", torch.randn(6, 64)),
    ("position_embd.weight", torch.randn(8, 64)),
    ("blk.0.ffn_down.weight", torch.randn(64, 48)),
    ("output_norm.weight", torch.randn(64)),
]


def write(path, dtype):
    write_weights(GGUFWriter(None, "gpt2"), path, WEIGHTS, dtype)
    reader = GGUFReader(path)
    assert reader.fields["general.file_type"].contents() == {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[dtype]
    return {tensor.name: tensor for tensor in reader.tensors}


def test_norms_and_positions_stay_exact_and_rows_without_whole_blocks_get_16_bits(tmp_path):
    found = write(tmp_path / "model.gguf", "q8_0")
    assert [tensor.tensor_type.name for tensor in found.values()] == ["Q8_0", "F32", "F16", "F32"]


def test_full_disk_is_noticed_before_writing_or_named(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("2048 requested and 1024 written")  # as numpy words it

    early = "model.gguf cannot be written: it needs 0 MiB, and the disk has 0 MiB left; free up space or choose"
    for name, stand_in, message in (
        ("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**10), early),
        ("gguf.GGUFWriter.write_tensor_data", full, "2048 requested and 1024 written"),
    ):
        with monkeypatch.context() as patch, pytest.raises(RunFolderError, match=message):
            patch.setattr(name, stand_in)
            path = tmp_path / "model.gguf"
            with naming_errors(path, "; free up space or choose"), replaced(path) as temporary:
                write_weights(GGUFWriter(None, "gpt2"), temporary, WEIGHTS, "f32")
        assert list(tmp_path.iterdir()) == []
