"""Formats of conversations and tokenizers of four kinds, for tests of how conversations become token ids."""

import functools
import json
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rl4dialog.data.dialogue_format import EOU_TOKEN, DialogueFormat
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn

CORPUS = [
    "i am fine , thank you . how are you today ?",
    "Hello there! Do you like the red house or the blue one?",
    "no , i do not . i like tea and the sea .",
    "It's 7 o'clock; I've got 12 apples (and 3 pears).",
    "system user assistant model header INST SYS start end of turn id text",
] * 4


@dataclass(frozen=True)
class Template:
    """A public chat template, its special tokens, and those that end a turn and start a text."""

    source: str
    control: tuple[str, ...]
    end: str
    bos: str | None = None


TEMPLATES = {
    "chatml": Template(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        ("<|im_start|>", "<|im_end|>"),
        "<|im_end|>",
    ),
    "llama2": Template(
        "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'] + "
        "'\n<</SYS>>\n\n' %}{% set said = messages[1:] %}{% else %}{% set system = '' %}{% set said = messages %}"
        "{% endif %}{% for m in said %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ '<s>[INST] ' + (system if loop.first else '') + m['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + ' </s>' }}{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        "</s>",
        "<s>",
    ),
    "llama3": Template(
        "{% for m in messages %}{{ ('<|begin_of_text|>' if loop.first else '') + '<|start_header_id|>' + m['role'] + "
        "'<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    "zephyr": Template(  # whose roles are ordinary text
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("</s>",),
        "</s>",
    ),
    "gemma": Template(
        "{{ '<bos>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] + "
        "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        "<bos>",
    ),
}
FORMATS = ("eou", *TEMPLATES)


def _byte_level(vocab_size=360):
    """GPT-2's kind: pairs of bytes, words with the space in front."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


_BYTES = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]


def _llama():
    """Llama's kind: sentencepiece's BPE over the whole text, with a space put before it, and bytes for the rest."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = _SPACES
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # merges within words
    trained.train_from_iterator(CORPUS, trainer)
    vocab = {token: i for i, token in enumerate([*_BYTES, *trained.get_vocab()])}
    merges = _merges(trained)
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = _SPACES
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


_SPACES = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def _merges(backend):
    return [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]


def _unigram():
    """T5's kind: sentencepiece's unigram model, with a space before a text only at its start."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=200, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"])
    trained.train_from_iterator(CORPUS, trainer)
    pieces = [(str(piece), float(score)) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]
    scored = [("<unk>", 0.0), *((byte, -20.0) for byte in _BYTES[1:]), *pieces[1:]]
    backend = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return backend


def _word_piece():
    """BERT's kind: lower case, spaces forgotten, unknown words."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, show_progress=False, special_tokens=["[UNK]"])
    backend.train_from_iterator([*CORPUS, *"<>|[]/_"], trainer)
    return backend


_MAKERS = {"byte_level": _byte_level, "llama": _llama, "unigram": _unigram, "word_piece": _word_piece}
TOKENIZERS = tuple(_MAKERS)


@functools.cache
def _trained(kind):
    return str(_MAKERS[kind]().to_str())


@dataclass(frozen=True)
class Format:
    """A format of conversations in a tokenizer."""

    name: str
    dialogue: DialogueFormat
    tokenizer: Any
    end: EndOfTurn

    @property
    def marker(self):
        return self.end.marker


def make_format(name, tokenizer):
    """Give a tokenizer a chat template, or use the markers of ``eou``."""
    if name == "eou":
        if tokenizer.eos_token is None:
            tokenizer.add_special_tokens({"eos_token": "<eos>"})
        if EOU_TOKEN not in tokenizer.decode(tokenizer(EOU_TOKEN, add_special_tokens=False)["input_ids"]):
            tokenizer.add_tokens([AddedToken(EOU_TOKEN, normalized=False)])
        tokenizer.pad_token = tokenizer.eos_token
        end = EndOfTurn(tokenizer, [tokenizer.eos_token_id], EOU_TOKEN)
        return Format(name, DialogueFormat("eou", None, in_conversation=True), tokenizer, end)
    template = TEMPLATES[name]
    tokenizer.add_special_tokens({"additional_special_tokens": list(template.control), "eos_token": template.end})
    if template.bos is not None:
        tokenizer.add_special_tokens({"bos_token": template.bos})
    tokenizer.pad_token, tokenizer.chat_template = template.end, template.source
    chat = DialogueFormat("chat_template", None, ChatTemplate(tokenizer))
    return Format(name, chat, tokenizer, EndOfTurn(tokenizer, [tokenizer.eos_token_id]))


def make_backend(kind):
    """A tokenizer of a kind, without special tokens."""
    unknown = {"byte_level": {}, "word_piece": {"unk_token": "[UNK]"}}.get(kind, {"unk_token": "<unk>"})
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(kind)), clean_up_tokenization_spaces=False, **unknown
    )


@functools.cache
def built(name, kind):
    """A format in a tokenizer made here."""
    return make_format(name, make_backend(kind))


def adds(tokenizer, template):
    """Make a tokenizer add special tokens to every text, such as ``<s> $A``."""
    named = [(token, tokenizer.convert_tokens_to_ids(token)) for token in template.split() if token != "$A"]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
