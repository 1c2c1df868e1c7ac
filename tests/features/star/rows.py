"""Rows of this feature in tables of tests about all components."""

from star_stand_in import write_star

UNTESTED_POOLS = ["star"]  # tested with files of its own
FEW_SAMPLES = {"star": {"n_groups": 2, "groups": {"train": [1], "val": [1], "test": [2]}, "held_out_share": 0.0}}


def _with_stand_in(config, folder):
    """Replace the folder of the dataset by a made-up one, and a simulator by one that needs no run."""
    if config.get("datapool", {}).get("id") != "star":
        return
    folder.mkdir(parents=True, exist_ok=True)
    config["datapool"]["args"]["path"] = str(write_star(folder, copies=4))
    if "partner" in (args := config["env"]["args"]):
        args["partner"] = {"id": "rules", "args": {"rules": [{"pattern": "x"}], "otherwise": "ok", "opening": "hi"}}


SMALLER_CONFIGS = [_with_stand_in]
HARMLESS_ARGUMENTS = ["groups", "tasks"]
