"""Makes a small model smaller: keeps only the tokens of its vocabulary that texts need, and their embeddings.

    python scripts/trim_vocabulary.py --model MODEL --texts talks.txt --output trimmed

On a CPU, a model of 15 million parameters spends most of its time on a vocabulary of 32,000 tokens. The texts are split
into the same tokens as before, but for rare ones (`--min_count`); others into smaller ones, down to bytes. It needs a
tokenizer of the kind BPE that falls back to bytes, such as Llama's.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import script
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rl4dialog.core.errors import ConfigError


def needed(
    tokenizer: PreTrainedTokenizerFast, description: dict[str, Any], texts: list[str], min_count: int
) -> set[str]:
    """Tokens that are frequent in the texts, those that are merged into them, special ones, and bytes."""
    parts = defaultdict[str, set[str]](set)
    for left, right in description["model"]["merges"]:
        parts[left + right] |= {left, right}
    counts = Counter(id for ids in tokenizer(texts)["input_ids"] for id in ids)
    kept = {*tokenizer.convert_ids_to_tokens([id for id, n in counts.items() if n >= min_count])}
    kept |= {each["content"] for each in description["added_tokens"]}
    kept |= {token for token in description["model"]["vocab"] if token.startswith("<0x")}
    kept |= {token for token in description["model"]["vocab"] if len(token) == 1 and token.isascii()}
    left = list(kept)
    while left:
        new = parts[left.pop()] - kept
        kept |= new
        left += new
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="name or folder of a causal language model")
    parser.add_argument("--texts", required=True, type=Path, help="a file of texts, one in each line")
    parser.add_argument("--min_count", type=int, default=1, help="how often a token is in the texts (default: 1)")
    parser.add_argument("--output", required=True, type=Path, help="folder of the smaller model")
    parser.add_argument("--max_length", type=int, help="positions of the smaller model (default: as the model)")
    args = parser.parse_args()
    tokenizer: Any = AutoTokenizer.from_pretrained(args.model)
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    if description["model"]["type"] != "BPE" or not description["model"].get("byte_fallback"):
        raise ConfigError(f"--model {args.model}: its tokenizer must be of the kind BPE, and fall back to bytes")
    kept = needed(tokenizer, description, args.texts.read_text(encoding="utf-8").splitlines(), args.min_count)
    before = tokenizer.get_vocab()
    old = sorted(id for token, id in before.items() if token in kept)
    new = {id: place for place, id in enumerate(old)}
    vocab = description["model"]["vocab"]
    description["model"]["vocab"] = {token: new[id] for token, id in vocab.items() if token in kept}
    merges = description["model"]["merges"]
    description["model"]["merges"] = [each for each in merges if {*each, "".join(each)} <= kept]
    for each in description["added_tokens"]:
        each["id"] = new[each["id"]]
    for each in (description["post_processor"] or {}).get("special_tokens", {}).values():
        each["ids"] = [new[id] for id in each["ids"]]
    names = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    small = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(description)), **names)

    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    embeddings = model.get_input_embeddings().weight.data[old].clone()
    head = model.get_output_embeddings().weight.data[old].clone()
    model.resize_token_embeddings(len(old))
    model.get_input_embeddings().weight.data.copy_(embeddings)
    model.get_output_embeddings().weight.data.copy_(head)
    for config in (model.config, model.generation_config):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if (id := getattr(config, name, None)) is not None:
                setattr(config, name, new[id])
    if args.max_length:
        model.config.max_position_embeddings = args.max_length
    model.save_pretrained(args.output)
    small.save_pretrained(args.output)
    print(f"{len(before):,} tokens before, {len(old):,} now; {model.num_parameters():,} parameters in {args.output}")


if __name__ == "__main__":
    script.run(main)
