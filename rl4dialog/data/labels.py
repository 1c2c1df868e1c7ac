"""The dialogue acts and emotions of DailyDialog, with the numbers in its files.

Source: Li et al. 2017, "DailyDialog: A Manually Labelled Multi-turn Dialogue Dataset".
"""

from __future__ import annotations

INFORM, QUESTION, DIRECTIVE, COMMISSIVE = 1, 2, 3, 4
NO_EMOTION, ANGER, DISGUST, FEAR, HAPPINESS, SADNESS, SURPRISE = range(7)

ACTS = {INFORM: "inform", QUESTION: "question", DIRECTIVE: "directive", COMMISSIVE: "commissive"}
EMOTIONS = {
    NO_EMOTION: "no emotion",
    ANGER: "anger",
    DISGUST: "disgust",
    FEAR: "fear",
    HAPPINESS: "happiness",
    SADNESS: "sadness",
    SURPRISE: "surprise",
}
