"""Exports the language model of a run as a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gguf import MODEL_ARCH_NAMES, GGUFWriter
from rich.console import Console
from rich.text import Text
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.inference.gguf.architectures import architecture_of, stored_weights
from rl4dialog.inference.gguf.checking import check_file, log_probs, token_ids
from rl4dialog.inference.gguf.vocabulary import add_vocabulary
from rl4dialog.inference.gguf.writing import dtype_of, replaced_file, write_weights
from rl4dialog.inference.model_card import prompt_format
from rl4dialog.inference.saved_run import find_checkpoint, model_folder, read_text_config
from rl4dialog.inference.saved_values import check_without_values
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.training.building.returns import return_prefix

_HINT = "Export a complete run, or one of its checkpoints (--checkpoint)."


def export_gguf(
    run: Path,
    output: Path,
    dtype: str | None = None,
    checkpoint: str | None = None,
    prior_only: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
    trust: bool = False,
) -> None:
    """Write a run's language model, tokenizer and chat template to a GGUF file, and check the file.

    Args:
        run: The run folder. No code that its config names is run without ``trust``.
        output: The file, which ends with ``.gguf``.
        dtype: Number format of the weights, of `rl4dialog.core.pretrained.DTYPES`; by default that of the saved model.
        checkpoint: A checkpoint instead of the final model: an iteration, ``last`` or ``best``.
        prior_only: Export the language model of a guided policy without its values, which GGUF files cannot have.
        overwrite: Replace an existing file.
        console: Console to print to.
        trust: Whether to run the code of a custom policy's class.
    """
    run, output, console = run.expanduser(), output.expanduser(), console or Console()
    _check_output(output, overwrite)
    config = read_text_config(run, trust)
    if config.is_encoder_decoder:
        raise ConfigError(
            f"the model of {run} is an encoder-decoder, which export does not support; decoder-only models have a "
            f"GGUF form. Its model/ is a folder that transformers loads"
        )
    check_without_values(config, run, prior_only, "which a GGUF file cannot contain", "export")
    folder = model_folder(run, None if checkpoint is None else find_checkpoint(run, checkpoint))
    model = load_model(AutoModelForCausalLM, str(folder), "language model", _HINT, with_values=True, dtype="auto")
    tokenizer = load_pretrained(AutoTokenizer, str(folder), "tokenizer", _HINT)
    provenance = read_provenance(run)
    architecture, dtype = architecture_of(model), dtype or dtype_of(model.dtype)
    writer = GGUFWriter(None, MODEL_ARCH_NAMES[architecture.gguf])
    writer.add_name(run.resolve().name)
    architecture.add_metadata(writer, model.config)
    n_rows = model.get_input_embeddings().num_embeddings
    writer.add_vocab_size(n_rows)
    notes = add_vocabulary(writer, tokenizer, n_rows, provenance.get("turn_marker"))
    texts = token_ids(tokenizer)
    with replaced_file(output) as temporary:
        write_weights(writer, temporary, stored_weights(model, architecture), dtype)
        expected, n_weights = log_probs(model.float().eval(), texts), model.num_parameters()
        del model  # the file's model takes as much memory again
        kl = check_file(temporary, texts, expected, dtype)
    size = output.stat().st_size / 2**20
    lines = (
        f"Written: {output} ({writer.arch}, {n_weights:,} weights, {dtype}, {size:,.1f} MiB)",
        f"Checked: transformers reads the same tokens from it, and the same model up to {kl:.1g} nats per token",
        *notes,
        *_prompts(config, provenance),
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _check_output(output: Path, overwrite: bool) -> None:
    if output.suffix != ".gguf":
        raise ConfigError(f"--output must end with .gguf, unlike {output}")
    if output.is_dir():
        raise RunFolderError(f"{output} is a folder; choose another --output")
    if output.exists() and not overwrite:
        raise RunFolderError(f"{output} exists already; choose another --output, or pass --overwrite")


def _prompts(config: TextConfig, provenance: Mapping[str, Any]) -> Iterator[str]:
    """How to write prompts for the model."""
    yield prompt_format(config, provenance)
    prefix = return_prefix(config)
    if prefix is not None:
        yield f"They begin with the return to achieve, such as {prefix.text(prefix.target):!r}."
