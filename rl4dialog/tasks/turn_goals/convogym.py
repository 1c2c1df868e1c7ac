"""The eleven goals of convogym (Tang et al. 2021, "Persona Authentication through Generative Dialogue").

Their names are convogym's. Questions and words are ours: convogym's speaker is a language model that has learned them.
"""

from __future__ import annotations

# By goal: ways to ask, and words with which people speak of it.
CONVOGYM = {
    "ask about kids.": (
        ("do you have kids ?", "how many children do you have ?"),
        "kid child children son daughter baby babies toddler twin",
    ),
    "ask about pets.": (
        ("do you have any pets ?", "what pet do you have ?"),
        "pet dog puppy cat kitten horse bird parrot fish rabbit hamster turtle snake lizard animal",
    ),
    "talk about work.": (
        ("what do you do for work ?", "what is your job ?"),
        "work worked working job career employed unemployed boss office teacher nurse doctor lawyer engineer manager "
        "store company retired business chef waitress driver mechanic accountant student school college university",
    ),
    "ask about marital status.": (
        ("are you married ?", "do you have a husband or a wife ?"),
        "married marry husband wife spouse divorced single fiance engaged boyfriend girlfriend date dating wedding",
    ),
    "talk about travel.": (
        ("do you like to travel ?", "where did you travel to ?"),
        "travel traveled traveling traveling trip vacation country countries europe abroad visit visited flying beach "
        "world",
    ),
    "ask about age and gender.": (
        ("how old are you ?", "are you a man or a woman ?"),
        "old older age young younger man woman male female guy girl boy lady teenager",
    ),
    "ask about hobbies.": (
        ("what are your hobbies ?", "what is your hobby ?"),
        "hobby hobbie sport basketball football baseball soccer tennis golf hike hiking running run swim swimming yoga "
        "gym game gaming read reading book paint painting draw garden gardening knit dance dancing fishing hunting "
        "bike biking cook cooking bake collect camping",
    ),
    "ask about favorite food.": (
        ("what food do you like ?", "what do you like to eat ?"),
        "food eat eating pizza pasta meat vegan vegetarian cheese steak sushi burger chocolate coffee tea drink fruit "
        "vegetable ice dessert candy cake chicken taco seafood bacon",
    ),
    "talk about movies.": (
        ("do you watch movies ?", "which movie do you like ?"),
        "movie film cinema watch watching tv television netflix show horror disney actor actress",
    ),
    "talk about music.": (
        ("do you listen to music ?", "what music do you like ?"),
        "music band song sing singing singer concert guitar piano violin drum rap rock jazz country metal listen album",
    ),
    "talk about politics.": (
        ("do you talk about politics ?", "do you vote ?"),
        "politic political vote voted voting president government republican democrat liberal conservative election "
        "law",
    ),
}
