"""Tokenizers as metadata of GGUF files.

llama.cpp has programs of its own that split texts, so a file only names one: byte-level BPE with one of its rules of
splitting texts before merging, or SentencePiece's BPE, which merges by scores of tokens. What is neither is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gguf import GGUFWriter, TokenType

from rl4dialog.core.errors import ModelError

_SPACE = "▁"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Steps before merging, as in tokenizer.json, and whether whole pieces are looked up first; by llama.cpp's name.
_SPLITS = {
    "gpt-2": (["GPT-2"], False),
    "smollm": (["Digits", "GPT-2"], False),
    "llama-bpe": ([_CONTRACTIONS + r"\p{N}{1,3}" + _REST, "bytes"], True),
    "qwen2": ([_CONTRACTIONS + r"\p{N}" + _REST, "bytes"], False),
}
_FORMS = (
    f"a GGUF file can have byte-level BPE that splits texts as {', '.join(_SPLITS)} do, or SentencePiece's BPE with "
    f"tokens for bytes"
)


def add_vocabulary(writer: GGUFWriter, tokenizer: Any, n_rows: int, end_of_turn: str | None) -> list[str]:
    """Add a tokenizer and its chat template; returns what users of the file have to mind.

    The embedding may have more rows than tokens. If the text that ends a reply is a token, llama.cpp ends replies
    there.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json; {_FORMS}")
    if len(tokenizer) > n_rows:
        raise ModelError(f"the tokenizer has {len(tokenizer)} tokens, but the model only {n_rows} embeddings")
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token, which llama.cpp needs to end a text")
    settings = json.loads(backend.to_str())
    is_sentencepiece = bool(settings["model"].get("byte_fallback"))
    notes = (_add_sentencepiece if is_sentencepiece else _add_byte_level)(writer, tokenizer, settings, n_rows)
    marker = None if end_of_turn is None else tokenizer.get_vocab().get(end_of_turn)
    if end_of_turn is not None and marker is None:
        notes.append(f"Replies end with {end_of_turn!r}, which is no token here: set it as a stop text.")
    _add_special(writer, tokenizer, marker)
    return notes


def _add_special(writer: GGUFWriter, tokenizer: Any, end_of_turn_id: int | None) -> None:
    """Add special tokens, which of them the tokenizer puts around texts, and the chat template."""
    for id, add in (
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.eos_token_id, writer.add_eos_token_id),
        (tokenizer.unk_token_id, writer.add_unk_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
        (end_of_turn_id, writer.add_eot_token_id),
    ):
        if id is not None:
            add(id)
    begins, ends = _added_ends(tokenizer)
    writer.add_add_bos_token(begins)
    writer.add_add_eos_token(ends)
    templates = tokenizer.chat_template
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    if templates:
        writer.add_chat_template(templates)


def _add_byte_level(writer: GGUFWriter, tokenizer: Any, settings: Mapping[str, Any], n_rows: int) -> list[str]:
    steps = _steps(settings["pre_tokenizer"])
    whole_first = bool(settings["model"].get("ignore_merges"))
    name = next((name for name, form in _SPLITS.items() if form == (steps, whole_first)), None)
    is_plain = settings["model"]["type"] == "BPE" and (settings["normalizer"] or {"type": "NFC"})["type"] == "NFC"
    if name is None or not is_plain or not _merges(settings):
        raise ModelError(f"the tokenizer has no GGUF form: {_FORMS}. {_kind_of(settings)}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    tokens, types = _tokens_and_types(tokenizer, n_rows)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in _merges(settings)])
    return _notes_of_added(tokenizer)


def _add_sentencepiece(writer: GGUFWriter, tokenizer: Any, settings: Mapping[str, Any], n_rows: int) -> list[str]:
    starts, notes = _prepends_space(settings), _notes_of_added(tokenizer)
    merges = _merges(settings)
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        scores.setdefault(left + right, -float(rank))
    if starts is None or settings["model"]["type"] != "BPE" or not _merge_by_scores(merges, scores, tokenizer):
        raise ModelError(f"the tokenizer has no GGUF form: {_FORMS}. {_kind_of(settings)}")
    if (settings["pre_tokenizer"] or {}).get("prepend_scheme") == "first":
        notes.append("llama.cpp reads a space after each special token of a prompt, which the tokenizer does not.")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    tokens, types = _tokens_and_types(tokenizer, n_rows)
    for id, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            tokens[id] = tokens[id].replace(_SPACE, " ")
        elif _is_byte(tokens[id]):
            types[id] = TokenType.BYTE
        elif id == tokenizer.unk_token_id:
            types[id] = TokenType.UNKNOWN
    writer.add_token_list(tokens)
    writer.add_token_scores([scores.get(token, 0.0) for token in tokens])
    writer.add_token_types(types)
    writer.add_add_space_prefix(starts)
    return notes


def _tokens_and_types(tokenizer: Any, n_rows: int) -> tuple[list[str], list[int]]:
    """All tokens by id, and their types; rows of the embedding without a token get a name that no text has."""
    tokens, types = [f"[PAD{id}]" for id in range(n_rows)], [int(TokenType.UNUSED)] * n_rows
    for token, id in tokenizer.get_vocab().items():
        tokens[id], types[id] = token, int(TokenType.NORMAL)
    for id, added in tokenizer.added_tokens_decoder.items():
        tokens[id] = added.content
        types[id] = int(TokenType.CONTROL if added.special else TokenType.USER_DEFINED)
    return tokens, types


def _notes_of_added(tokenizer: Any) -> list[str]:
    """Tokens that take whitespace around them along, which llama.cpp's do not."""
    greedy = [added.content for added in tokenizer.added_tokens_decoder.values() if added.lstrip or added.rstrip]
    return [
        f"Write no space beside {token!r}: here the token includes it, in llama.cpp it does not." for token in greedy
    ]


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[str]:
    """The steps before merging in short: ``GPT-2``, ``Digits``, ``bytes``, or the regular expression of a split."""
    if pre_tokenizer is None:
        return []
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return [step for each in pre_tokenizer["pretokenizers"] for step in _steps(each)]
    if kind == "ByteLevel" and not pre_tokenizer["add_prefix_space"]:
        return ["GPT-2" if pre_tokenizer.get("use_regex", True) else "bytes"]
    if kind == "Digits" and pre_tokenizer["individual_digits"]:
        return ["Digits"]
    if kind == "Split" and pre_tokenizer["behavior"] == "Isolated" and not pre_tokenizer["invert"]:
        return [pre_tokenizer["pattern"].get("Regex", "a text")]
    return [f"another {kind}"]


def _prepends_space(settings: Mapping[str, Any]) -> bool | None:
    """Whether a SentencePiece tokenizer reads texts as if they began with a space; ``None`` if it is another one."""
    normalizer, split = settings["normalizer"], settings["pre_tokenizer"]
    if normalizer is None and split is not None and split["type"] == "Metaspace" and not split.get("split", True):
        return bool(split["prepend_scheme"] != "never")
    if normalizer is None or split is not None:
        return None
    steps = normalizer.get("normalizers", [normalizer])
    found = [(step["type"], step.get("prepend") or step.get("content")) for step in steps]
    if found == [("Prepend", _SPACE), ("Replace", _SPACE)]:
        return True
    return False if found == [("Replace", _SPACE)] else None


def _merge_by_scores(merges: list[tuple[str, str]], scores: Mapping[str, float], tokenizer: Any) -> bool:
    """Whether merging the pair with the best score of its result is the same as merging by the list."""
    ranks = [scores[left + right] for left, right in merges]
    if ranks != sorted(ranks, reverse=True):
        return False
    # llama.cpp merges any two tokens whose texts together are a token.
    added = {added.content for added in tokenizer.added_tokens_decoder.values()}
    listed, vocabulary = set(merges), tokenizer.get_vocab()
    return all(
        (token[:cut], token[cut:]) in listed
        for token in vocabulary
        if token not in added and not _is_byte(token)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )


def _is_byte(token: str) -> bool:
    """Whether a token is a byte, such as ``<0x0A>``."""
    return token.startswith("<0x") and len(token) == len("<0x0A>")


def _added_ends(tokenizer: Any) -> tuple[bool, bool]:
    """Whether the tokenizer puts its first and its last token around a text."""
    ids, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    n_before = next(start for start in range(len(ids) + 1) if ids[start : start + len(plain)] == plain)
    return n_before > 0, len(ids) > n_before + len(plain)


def _merges(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in settings["model"].get("merges", [])]


def _kind_of(settings: Mapping[str, Any]) -> str:
    model = settings["model"]["type"]
    if model == "BPE" and not _merges(settings):
        return "This one has a token per word or character (builtin/words, builtin/characters)"
    steps = ", ".join(_steps(settings["pre_tokenizer"])) or "nothing"
    return f"This one is {model} and splits texts by: {steps}"
