"""Building a tokenizer from a path, a hub id or ``builtin/...``, and encoding prompts in one way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ModelError
from rl4dialog.core.hub import load_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILTIN_PREFIX = "builtin/"
EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"


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
    """Load a tokenizer, or train the built-in one on a corpus.

    Args:
        model_name: A folder, a hub id, or ``builtin/<name>`` for a byte-level BPE trained on ``corpus``.
        padding_side: Where batches are padded; prompts are always padded on the left.
        truncation_side: Which end of a long prompt is dropped.
        pad_token_as_eos_token: Pad with the end-of-sequence token if there is no pad token. Masks are explicit, so
            nothing is ever inferred from the two being equal.
        max_length: Overrides the tokenizer's own limit, in tokens.
        vocab_size: Size of a built-in tokenizer's vocabulary.
        corpus: Texts that a built-in tokenizer is trained on.
        turn_marker: End-of-turn text, which a built-in tokenizer keeps as one token.

    Raises:
        ModelError: If the tokenizer cannot be loaded, is empty, or has no way to pad.
    """
    from transformers import AutoTokenizer

    if model_name.startswith(BUILTIN_PREFIX):
        folder = _trained_byte_level_bpe(list(corpus), vocab_size, turn_marker)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    else:
        tokenizer = load_pretrained(
            AutoTokenizer,
            model_name,
            "tokenizer",
            "Give a folder that holds a tokenizer, a hub id while there is a network, or builtin/tiny-gpt2, which "
            "needs neither.",
        )
    if len(tokenizer) == 0:
        raise ModelError(f"tokenizer {model_name!r} has an empty vocabulary: its files were not found or not read")
    if tokenizer.pad_token is None:
        if not pad_token_as_eos_token or tokenizer.eos_token is None:
            raise ModelError(
                f"tokenizer {model_name!r} has no pad token; set tokenizer.pad_token_as_eos_token: true "
                f"(it needs an end-of-sequence token for that)"
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = padding_side
    tokenizer.truncation_side = truncation_side
    if max_length is not None:
        tokenizer.model_max_length = max_length
    return tokenizer


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, text: str, max_length: int, truncation_side: str = "left"
) -> list[int]:
    """Token ids of a prompt, at least 1 and at most ``max_length`` of them.

    Raises:
        ModelError: If the prompt is empty and the tokenizer has neither a begin- nor an end-of-sequence token.
    """
    # Not the tokenizer's own truncation: that is state of the tokenizer, shared by everyone who holds it.
    # A chat template has written the special tokens already.
    is_marked = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    ids: list[int] = tokenizer(text, add_special_tokens=not is_marked, truncation=False, verbose=False)["input_ids"]
    if len(ids) > max_length:
        n_prefix = 1 if ids[0] == tokenizer.bos_token_id and max_length > 1 else 0
        kept = max_length - n_prefix
        ids = ids[:n_prefix] + (ids[-kept:] if truncation_side == "left" else ids[n_prefix : n_prefix + kept])
    if not ids:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if start is None:
            raise ModelError("a prompt is empty and the tokenizer has no token to start from")
        ids = [start]
    return ids


def _trained_byte_level_bpe(corpus: list[str], vocab_size: int, turn_marker: str | None) -> Path:
    """Folder of a byte-level BPE tokenizer trained on the corpus, cached by the corpus' content."""
    from rl4dialog.core.cache import cached_folder, content_hash

    if not corpus:
        raise ModelError("a built-in tokenizer is trained on the datapool's texts, and there are none")
    key = {"corpus": content_hash(corpus), "vocab_size": vocab_size, "turn_marker": turn_marker}

    def build(folder: Path) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

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
            # lstrip: "a <EOU>" and "a<EOU>", both of which the format writes, end in the same token.
            bpe.add_tokens([AddedToken(turn_marker, lstrip=True, normalized=False, special=False)])
        tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            bos_token=EOS_TOKEN,
            eos_token=EOS_TOKEN,
            pad_token=PAD_TOKEN,
            clean_up_tokenization_spaces=False,
        )
        tokenizer.save_pretrained(folder)

    return cached_folder("tokenizer", key, build)
