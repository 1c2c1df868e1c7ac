"""Loads tokenizers, and trains the built-in ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import has_random_weights, load_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"
UNKNOWN_TOKEN = "<|unk|>"
CHARACTERS = "builtin/characters"  # one token per character
WORDS = "builtin/words"  # one token per word
_UNITS = {CHARACTERS: "character", WORDS: "word"}


def build_tokenizer(
    model_name: str,
    padding_side: str = "left",
    truncation_side: str = "left",
    pad_token_as_eos_token: bool = True,
    max_length: int | None = None,
    vocab_size: int = 1000,
    corpus: Iterable[str] = (),
    turn_marker: str | None = None,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer, or train a built-in one on a corpus, in which the turn marker is a single token.

    The arguments are those of the block ``tokenizer``. ``builtin/characters`` has one token per character of the
    corpus, ``builtin/words`` one per word. Any other ``builtin/<name>`` without pretrained weights is a byte-level BPE.
    Masks are explicit, so ids of padding that equal the end of a sequence are never confused.
    """
    from transformers import AutoTokenizer

    if has_random_weights(model_name):
        folder = _trained(model_name, list(corpus), vocab_size, turn_marker)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    else:
        hint = (
            "Pass a folder that contains a tokenizer, a .gguf file, a hub id if there is a network, or "
            "builtin/tiny-gpt2, which needs none of them."
        )
        tokenizer = load_pretrained(AutoTokenizer, model_name, "tokenizer", hint)
    if len(tokenizer) == 0:
        raise ModelError(f"tokenizer {model_name!r} has an empty vocabulary: its files are missing or unreadable")
    if tokenizer.pad_token is None:
        if not pad_token_as_eos_token or tokenizer.eos_token is None:
            raise ModelError(
                f"tokenizer {model_name!r} has no pad token; set tokenizer.pad_token_as_eos_token: true "
                f"(this requires an end-of-sequence token)"
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = padding_side
    tokenizer.truncation_side = truncation_side
    if max_length is not None:
        tokenizer.model_max_length = max_length
    return tokenizer


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash a tokenizer, so that token ids are only used with the tokenizer that they belong to.

    16 hexadecimal digits: of the JSON of the Rust tokenizer behind it, or of its vocabulary if there is none. Settings
    of padding and truncation do not count, as they change with every use.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    found = json.loads(backend.to_str()) if backend is not None else {"vocab": tokenizer.get_vocab()}
    kept = {key: value for key, value in found.items() if key not in ("padding", "truncation")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def encoding_key(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """What determines the ids of a text, as JSON values: the tokenizer and the special tokens, which its hash omits."""
    return [tokenizer_hash(tokenizer), {name: str(token) for name, token in tokenizer.special_tokens_map.items()}]


def _trained(name: str, corpus: list[str], vocab_size: int, turn_marker: str | None) -> Path:
    """Train a tokenizer on the corpus, cached by its content; returns the folder."""
    from rl4dialog.core.cache import cached_folder, content_hash

    if not corpus:
        raise ModelError("a built-in tokenizer is trained on the datapool's texts, but there are none")
    key = {"corpus": content_hash(corpus), "vocab_size": vocab_size, "turn_marker": turn_marker}
    if name in _UNITS:
        key["unit"] = _UNITS[name]

    def build(folder: Path) -> None:
        if name in _UNITS:
            trained = _whole_pieces(name, corpus, vocab_size, turn_marker)
        else:
            trained = _byte_level_bpe(corpus, vocab_size, turn_marker)
        trained.save_pretrained(folder)

    return cached_folder("tokenizer", key, build)


def _byte_level_bpe(corpus: list[str], vocab_size: int, turn_marker: str | None) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = corpus if turn_marker is None else [text.replace(turn_marker, " ") for text in corpus]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - (turn_marker is not None),
        special_tokens=[EOS_TOKEN, PAD_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    if turn_marker is not None:
        # lstrip: "a <EOU>" and "a<EOU>", both of which occur in the format, end with the same token.
        bpe.add_tokens([AddedToken(turn_marker, lstrip=True, normalized=False, special=False)])
    return _wrapped(bpe)


def _whole_pieces(name: str, corpus: list[str], vocab_size: int, turn_marker: str | None) -> Any:
    """Make a tokenizer with one token per character (code point) of the corpus, and for `WORDS` one per word.

    Words are separated by whitespace; those of other texts are written in characters. Texts of these characters are
    decoded exactly as they were. Any other is ``UNKNOWN_TOKEN``, which decoded texts leave out, as all special tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    has_words = name == WORDS
    gap = " " if has_words else ""
    texts = corpus if turn_marker is None else [text.replace(turn_marker, gap) for text in corpus]
    characters = sorted(set().union(*texts))
    words = sorted({word for text in texts for word in text.split() if len(word) > 1}) if has_words else []
    tokens = [EOS_TOKEN, PAD_TOKEN, UNKNOWN_TOKEN, *characters, *words]
    n_tokens = len(tokens) + (turn_marker is not None)
    if n_tokens > vocab_size:
        needed = f"{len(words)} words and " if has_words else ""
        raise ModelError(
            f"tokenizer {name!r} needs {n_tokens} tokens for the {needed}{len(characters)} characters of the "
            f"datapool's texts, but tokenizer.vocab_size is {vocab_size}; raise it, or use another tokenizer"
        )
    vocabulary = {token: id for id, token in enumerate(tokens)}
    # BPE without merges finds a whole piece in its vocabulary, or else reads it in characters; as fast as with merges.
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN_TOKEN, ignore_merges=True))
    if has_words:
        bpe.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), behavior="isolated")
    bpe.decoder = decoders.Fuse()
    if turn_marker is not None:
        # lstrip: as for the byte-level BPE.
        bpe.add_tokens([AddedToken(turn_marker, lstrip=has_words, normalized=False, special=False)])
    return _wrapped(bpe, unk_token=UNKNOWN_TOKEN)


def _wrapped(tokenizer: Any, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=EOS_TOKEN,
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        clean_up_tokenization_spaces=False,
        **special,
    )
