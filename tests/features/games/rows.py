"""Rows of this feature in tables of tests about all components."""


def _wordle(player):
    return {"datapool": {"id": "wordle", "args": {"player": player, "p_consistent": 0.5}}}


OTHER_POOLS_WITHOUT_FILES = [("wordle", {"n_train": 20, "n_val": 20, "n_test": 20, "games": "adversarial"})]
UNTESTED_POOLS = ["text_arena"]  # which needs a package
WRONG_POOL_ARGUMENTS = [
    ("guess_the_picture", {"n_scenes": 0}),
    ("guess_the_picture", {"open_share": 1.5}),
    ("wordle", {"word_list": 100}),
    ("wordle", {"p_consistent": 1.5}),
    ("wordle", {"start_words": "music"}),
]
SECRETS = [
    ("wordle", {"letters": "spaced"}, {"word": "crane"}, "c r a n e"),
    ("guess_the_picture", {}, {"scene": 1, "table": {"n_scenes": 4, "seed": 0}}, None),
]
CONDITIONS_MET = [({}, "note", _wordle("random"), "datapool.args.p_consistent has no effect")]
CONDITIONS_NOT_MET = [({}, _wordle("mixture"))]
