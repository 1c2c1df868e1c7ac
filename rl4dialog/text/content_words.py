"""Words of a text that say what it is about."""

from __future__ import annotations

import re

# Function words, ends of contractions ("don't", "I'll"), and words of questions and facts about anything: "do you like
# ...?", "my favorite ... is".
_STOP_WORD_LIST = """
a about all also am an and any are aren as at be been but by can could d did didn do does doesn doing don done for from
get go going got had has have having he her him his how i if in into is isn it just kind like likes ll lot love m many
me more most much my no not of off often on one or other our out re really s she so some t tell than that the their
them then there these they thing things this those to too up us ve very was were what when where which who whom whose
why will with would yes you your favorite favourite
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


def content_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without function words and without a final ``s``."""
    words = set(re.findall(r"[^\W_]+", text.lower())).difference(_STOP_WORDS)
    return {word.removesuffix("s") for word in words}
