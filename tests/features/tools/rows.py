"""Rows of this feature in tables of tests about all components."""

CONVERSATION_REWARDS = ["right_call"]
GENERATED_POOLS = {"rides": [4000, 100, 200]}
HARMLESS_ARGUMENTS = ["ends_after", "tools"]
