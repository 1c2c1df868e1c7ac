"""Rows of this feature in tables of tests about all components."""

UNTESTED_POOLS = ["star"]  # tested with files of its own
OTHER_REWARDS = ["right_star_call"]
PAYS_BEFORE_THE_END = []
