"""A model that keeps the embeddings of the tokens that texts need computes for these texts what it computed before."""

import json
import runpy

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXTS = ["the red kettle is hot", "a red lamp and a red kettle", "the lamp is here"]
OTHERS = [f"{a} {b} of the {c}" for a in ("green", "blue") for b in ("garden", "winter") for c in ("river", "mountain")]


@pytest.fixture
def large(tmp_path):
    """A tiny Llama whose tokenizer merges letters and falls back to bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(TEXTS + OTHERS, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = description["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(description))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(wrapped), eos_token_id=2, **sizes)).save_pretrained(tmp_path / "large")
    wrapped.save_pretrained(tmp_path / "large")
    return tmp_path / "large"


def test_texts_are_split_and_scored_as_before(large, tmp_path, monkeypatch, request):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    small = tmp_path / "small"
    arguments = ["--model", large, "--texts", tmp_path / "texts.txt", "--output", small, "--max_length", 64]
    monkeypatch.setattr("sys.argv", ["trim_vocabulary.py", *map(str, arguments)])
    monkeypatch.syspath_prepend(request.config.rootpath / "scripts")
    runpy.run_path(str(request.config.rootpath / "scripts/trim_vocabulary.py"))["main"]()
    before, after = (
        (AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder))
        for folder in (large, small)
    )
    assert len(after[0]) < len(before[0]) and after[1].config.max_position_embeddings == 64
    for text in TEXTS:
        ids, tokens, logits = [], [], []
        for tokenizer, model in (before, after):
            ids.append(tokenizer(text, return_tensors="pt")["input_ids"])
            tokens.append(tokenizer.convert_ids_to_tokens(ids[-1][0]))
            logits.append(model(ids[-1]).logits.detach()[0])
        kept = before[0].convert_tokens_to_ids(after[0].convert_ids_to_tokens(range(len(after[0]))))
        assert tokens[0] == tokens[1] and torch.allclose(logits[0][:, kept], logits[1], atol=1e-6)
    tokenizer = after[0]
    assert tokenizer.decode(tokenizer("green lamp")["input_ids"]).strip() == "green lamp"
    assert tokenizer.convert_tokens_to_ids("</s>") == after[1].config.eos_token_id
