"""Tiny models and tokenizers of the kinds that have a GGUF form."""

import torch
from architectures import CAUSAL
from gguf_file import CORPUS, TEMPLATE, train_bpe
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(digits=False, regex=None, ignore_merges=False):
    """A byte-level BPE tokenizer with a chat template, that splits texts as GPT-2, or SmolLM, or by ``regex``."""
    bpe = train_bpe(digits)
    if regex is not None:
        split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    bpe.model.ignore_merges = ignore_merges
    tokenizer = _wrapped(bpe, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def qwen2():
    """A byte-level BPE tokenizer that splits texts as Qwen2."""
    return byte_level(regex=_QWEN2)


def llama3():
    """A byte-level BPE tokenizer that splits texts as Llama 3."""
    return byte_level(regex=_QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1), ignore_merges=True)


def sentencepiece(normalizer=None, pre_tokenizer=None):
    """A BPE tokenizer like Llama's: with ▁ for spaces, tokens for bytes, and a token before each text."""
    normalizer = normalizer or normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learned = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    special, pieces = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {token: id for id, token in enumerate([*special, *pieces, *learned])}
    merges = generate_merges({token: vocab[token] for token in learned})
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bpe.add_special_tokens(special)
    if pre_tokenizer is None:
        bpe.normalizer = normalizer
    else:
        bpe.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    bpe.decoder = decoders.Sequence(steps)
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    return _wrapped(bpe, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")


def with_marker(tokenizer):
    """The tokenizer with a turn marker that takes spaces before it along, as a built-in one has it."""
    tokenizer.add_tokens([AddedToken("<EOU>", lstrip=True, normalized=False, special=False)])
    return tokenizer


def tiny_model(name, tokenizer, **changes):
    """A model whose weights are all random, norms and biases included, and more rows than the tokenizer has tokens."""
    torch.manual_seed(0)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    settings = {key: value for key, value in CAUSAL[name].items() if "window" not in key}
    if name == "mistral":
        settings["sliding_window"] = None
    settings = {**settings, **ids, "vocab_size": len(tokenizer) + 3, **changes}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


def _wrapped(bpe, **special):
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **special)
