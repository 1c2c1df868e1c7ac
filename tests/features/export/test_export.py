"""``rl4dialog export`` of runs that were trained: the file, what the command prints, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from runs import make_config, module_run, run_folder, train
from transformers import AutoModelForCausalLM, AutoTokenizer

import rl4dialog
from rl4dialog import cli


def with_adapters(folder):
    """A run with LoRA, also of a tied head, and checkpoints."""
    lora = {"r": 2, "init_lora_weights": False, "target_modules": ["q_proj", "lm_head"]}
    name = {"tokenizer__model_name": "builtin/tiny-llama", "alg__policy__args__model_name": "builtin/tiny-llama"}
    return make_config(folder, lora=lora, train_evaluation__save_every=1, **name)


run = module_run(with_adapters)


@pytest.fixture
def copied(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "elsewhere"))


def export(run, output, *flags):
    return cli.main(["export", "--run", str(run), "--output", str(output), *flags])


def greedy(model, ids):
    return model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False).tolist()[0]


def test_file_has_the_trained_model_with_its_adapters_merged(run, tmp_path, capsys):
    output = tmp_path / "new" / "model.gguf"
    assert export(run, output) == 0
    printed = capsys.readouterr().out
    assert f"Written: {output} (llama, " in printed and " weights, f32, " in printed
    assert "Checked: transformers reads the same tokens from it, and the same model up to 0 nats" in printed
    assert "Write no space beside '<EOU>'" in printed and "Every utterance of a prompt ends with `<EOU>`" in printed
    original = AutoModelForCausalLM.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    read = AutoModelForCausalLM.from_pretrained(output.parent, gguf_file=output.name).eval()
    ids = tokenizer("How are you?<EOU>")["input_ids"]
    assert AutoTokenizer.from_pretrained(output.parent, gguf_file=output.name)("How are you?<EOU>")["input_ids"] == ids
    assert greedy(read, ids) == greedy(original, ids)
    fields = GGUFReader(output).fields
    assert fields["general.name"].contents() == "e"
    assert fields["tokenizer.ggml.eot_token_id"].contents() == tokenizer.convert_tokens_to_ids("<EOU>")


def test_exported_file_is_a_model_name(run, tmp_path):
    output = tmp_path / "model.gguf"
    assert export(run, output) == 0
    names = {"tokenizer__model_name": str(output), "alg__policy__args__model_name": str(output)}
    assert train(tmp_path, make_config(tmp_path, **names, train_evaluation__n_iters=0)) == 0
    prompts, replies = ["How are you?<EOU>"], ["Fine, and you?"]
    assert rl4dialog.load_policy(run_folder(tmp_path)).log_probs(prompts, replies)[0] == pytest.approx(
        rl4dialog.load_policy(run).log_probs(prompts, replies)[0], abs=1e-4
    )


def test_number_format_and_checkpoint_are_chosen(run, tmp_path, capsys):
    paths = [tmp_path / f"{i}.gguf" for i in range(3)]
    flags = ((), ("--dtype", "q8_0"), ("--checkpoint", "1"))
    assert [export(run, path, *more) for path, more in zip(paths, flags, strict=True)] == [0, 0, 0]
    assert " weights, q8_0, " in capsys.readouterr().out
    final, quantized, early = (GGUFReader(path) for path in paths)
    assert {tensor.tensor_type.name for tensor in quantized.tensors} >= {"F32", "Q8_0"}
    same = [(a.data == b.data).all() for a, b in zip(final.tensors, early.tensors, strict=True)]
    assert not all(same)


def test_existing_file_is_kept(run, tmp_path, refused):
    output = tmp_path / "model.gguf"
    output.write_text("mine")
    refused(export(run, output), f"{output} exists already; choose another --output, or pass --overwrite")
    assert output.read_text() == "mine"
    assert export(run, output, "--overwrite") == 0
    assert output.read_bytes()[:4] == b"GGUF"
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_output_without_a_place_is_refused(run, tmp_path, refused):
    (tmp_path / "file").touch()
    (tmp_path / "folder.gguf").mkdir()
    for output, message in (
        (tmp_path / "model.bin", "--output must end with .gguf"),
        (tmp_path / "folder.gguf", "is a folder; choose another --output"),
        (tmp_path / "file" / "model.gguf", "model.gguf cannot be written: "),
    ):
        refused(export(run, output, "--overwrite"), message)


def test_other_kinds_of_policies_are_refused(copied, tmp_path, refused):
    config = json.loads((copied / "config.json").read_text())
    config["alg"]["policy"]["id"] = "seq2seq_lm_actor_critic_policy"
    (copied / "config.json").write_text(json.dumps(config))
    refused(export(copied, tmp_path / "model.gguf"), "is an encoder-decoder, which export does not support")


def test_prior_only_is_for_guided_policies(run, tmp_path, refused):
    refused(export(run, tmp_path / "model.gguf", "--prior_only"), "--prior_only has no meaning")
