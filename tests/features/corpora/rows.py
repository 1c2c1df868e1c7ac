"""Rows of this feature in tables of tests about all components."""

import functools
import json

from stand_in_data import write_original

METRIC_KEYS = {
    "bleu_totto": {"table_to_text/bleu_overall", "table_to_text/bleu_overlap", "table_to_text/bleu_non_overlap"},
    "cider": {"lexical/cider"},
    "parent_totto": {
        f"table_to_text/parent_{subset}{part}"
        for subset in ("overall", "overlap", "non_overlap")
        for part in ("/precision", "/recall", "_f_score")
    },
    "spice": {"lexical/spice"},
    "spider": {"lexical/spider"},
    "summaCConv": {"consistency/summacconv"},
    "summaCZS": {"consistency/summaczs"},
}


def _nli(fixture):
    return {"model_name": fixture("save_classifier")(["entailment", "neutral", "contradiction"])}


def _summac_conv(fixture):
    import torch

    shapes = {"mlp.weight": (1, 23), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}
    path = str(fixture("tmp_path") / "weights.bin")
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, path)
    return {"start_file": path, "models": [_nli(fixture)["model_name"]]}


def _spice(fixture):
    folder = fixture("spice_folder")
    return {"spice_path": str(folder), "java": str(folder / "java")}


ARGUMENTS = {
    "common_gen_preference_model": lambda fixture: {"model_name": fixture("save_t5")(["good", "bad", "a", "cat"])},
    "spice": _spice,
    "spider": _spice,
    "summaCConv": _summac_conv,
    "summaCZS": _nli,
}
SAME_AS_METRIC = {
    "parent": ("parent_totto", "table_to_text/parent_overall_f_score"),
    "spider": ("spider", "lexical/spider"),
}
DEPENDS_ON_THE_OTHERS = ["spider"]
ACCEPTED_REWARDS = [
    ("common_gen_preference_model", {"model_type": "11b", "device": "cuda:1", "batch_size": 1}),
    ("meteor", {"shaping_fn": "common_gen_repeat_penalty"}),
    ("rouge", {"rouge_type": "rouge1", "shaping_fn": "common_gen_repeat_penalty", "use_single_ref": False}),
    ("rouge_combined", {"shaping_fn": "common_gen_repeat_penalty"}),
    ("spider", {"spice_coeff": 0.5, "cider_coeff": 0.5, "shaping_fn": "common_gen_repeat_penalty_batched"}),
]
ACCEPTED_METRICS = [
    ("summaCConv", {"granularity": "sentence"}),
    ("summaCZS", {"granularity": "sentence", "use_ent": True, "use_con": False}),
]
NO_EFFECT = ["common_gen_preference_model"]
WRONG_ARGUMENTS = [
    "reward function common_gen_preference_model: batch_size=0 meteor_coeff=x",
    "metric spider: cider_coeff=x",
    "datapool cnn_daily_mail: truncate_article=0",
    "datapool imdb_seq2seq: positive_ratio=1.5",
    "datapool totto: representation=subtabel",
]
CRD3 = [
    {
        "ALIGNMENT": {"CHUNK ID": "C1E001_0", "TURN START": 0, "TURN END": 2, "ALIGNMENT SCORE": 2.0},
        "CHUNK": "They meet.",
        "TURNS": [
            {"NAMES": ["MATT"], "UTTERANCES": ["Hello everyone .", "Welcome ."], "NUMBER": 0},
            {"NAMES": ["LAURA", "SAM"], "UTTERANCES": ["Hi ."], "NUMBER": 1},
            {"NAMES": ["MATT"], "UTTERANCES": ["Roll ."], "NUMBER": 2},
        ],
    }
]


def _write_crd3(folder):
    files = {"c=2/C1E001_2_0.json": json.dumps(CRD3)}
    files |= {f"{split}_files": "C1E001\n" for split in ("train", "val", "test")}
    for name, content in files.items():
        path = folder / "aligned data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


POOLS = {
    "crd3": ("crd3", {}, _write_crd3),
    **{
        id: (id, {}, functools.partial(write_original, id))
        for id in ("commongen", "imdb", "totto", "narrative_qa", "cnn_daily_mail")
    },
    "translation": ("iwslt2017en_de", {}, functools.partial(write_original, "iwslt2017en_de")),
}
UNTESTED_POOLS = ["imdb_seq2seq", "wmt16", "wmt16newsonly", "wmt14_processed_en_de"]  # which read as others do
CUT_FILES = [("crd3", "aligned data/c=2/C1E001_2_0.json"), ("totto", "totto_train_data.jsonl")]
CAN_TALK = [("common_gen/t5_ppo", False)]
