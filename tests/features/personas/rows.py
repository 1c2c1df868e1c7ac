"""Rows of this feature in tables of tests about all components."""

from stand_in_data import write_original


def _write_personas(folder):
    for name in ("train", "val", "valid", "test"):
        (folder / f"{name}_self_original.txt").write_text(PERSONAS, encoding="utf-8")
    return folder


def _write_pairs(folder):
    return write_original("persona_pairs", folder)


PERSONAS = (
    "1 your persona: i like tea .\n2 partner's persona: i have a cat .\n3 hello !\thi , how are you ?\n"
    "4 fine .\tgood .\t\thi .|bye .|good .\n1 your persona: i run .\n2 __SILENCE__\thello .\n3 hi .\tbye .\n"
)
CONSISTENCY_KEYS = {"consistency/persona", "consistency/persona_contradiction"}
RANKING_KEYS = {f"persona_ranking/{name}" for name in ("p@1", "p@5", "r@5", "r@10", "mrr", "potential")}
METRIC_KEYS = {"persona_consistency": CONSISTENCY_KEYS}
DIALOGUE_METRIC_KEYS = {"persona_consistency": CONSISTENCY_KEYS, "persona_ranking": RANKING_KEYS}
ARGUMENTS = {
    "persona_consistency": lambda fixture: {
        "model_name": fixture("save_classifier")(["entailment", "neutral", "contradiction"])
    },
    "persona_ranking": lambda fixture: {
        "personas": lambda key: [("a cat",), ("hi", "a b"), ("x",)],
        "n_distractors": 2,
    },
}
WRONG_ARGUMENTS = ["datapool persona_chat: persona_side=slef"]
FEW_SAMPLES = {"get_acquainted": {"n_train": 24, "n_val": 6, "n_test": 6}}
WRONG_POOL_ARGUMENTS = [("get_acquainted", {"n_turns": 0})]
POOLS = {
    "persona_chat": ("persona_chat", {}, _write_personas),
    "persona_pairs": ("persona_pairs", {"order": "sequence"}, _write_pairs),
}
POOLS_WITHOUT_REFERENCES = ["PersonaPairs"]
