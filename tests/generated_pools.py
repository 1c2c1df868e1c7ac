"""Datapools that generate their samples, with the numbers that they generate by default."""

from feature_rows import rows_of_features

from rl4dialog.catalog import DataPoolRegistry

NUMBERS = ("n_train", "n_val", "n_test")
SIZES = {
    id: [defaults[number] for number in NUMBERS]
    for id in DataPoolRegistry.ids()
    if {*NUMBERS} <= (defaults := DataPoolRegistry.defaults(id)).keys()
} | rows_of_features("POOL_SIZES")
UNTESTED = rows_of_features("UNTESTED_POOLS")
