"""What the little dialogues are about: the words of each topic, by the slot that they fill.

Words of one slot fit each other in every sentence of `phrases`: every thing of a topic can have every look, and
every verb can be done with every thing. Things are countable nouns. The words that all topics share are at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl4dialog.data.labels import ANGER, DISGUST, FEAR, SADNESS


@dataclass(frozen=True)
class Topic:
    """The words of one topic.

    Attributes:
        name: Of the topic.
        things: Nouns that a dialogue can be about.
        looks: Adjectives that tell one thing from another.
        good: Adjectives of praise.
        bad: Adjectives of blame.
        verbs: What people do with a thing: base form and past tense.
        places: Where they do it, with preposition.
        items: What they need for it.
        joys: What a thing did well: a verb phrase in the past tense.
        woes: What went wrong, with the emotion that it causes.
        can_be_had: True when one can offer somebody such a thing.
        can_be_shown: True when one can take a photo of it.
        has_price: True when such a thing is bought.
    """

    name: str
    things: tuple[str, ...]
    looks: tuple[str, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    verbs: tuple[tuple[str, str], ...]
    places: tuple[str, ...]
    items: tuple[str, ...]
    joys: tuple[str, ...]
    woes: tuple[tuple[int, str], ...]
    can_be_had: bool = True
    can_be_shown: bool = True
    has_price: bool = False


def _topic(
    name: str,
    things: str,
    looks: str,
    good: str,
    bad: str,
    verbs: str,
    places: str,
    items: str,
    joys: str,
    woes: tuple[tuple[int, str], ...],
    **flags: bool,
) -> Topic:
    """Read a topic from strings: words are separated by blanks, phrases by ``|``, forms of a verb by ``:``."""
    verb_forms = [verb.split(":") for verb in verbs.split()]
    return Topic(
        name=name,
        things=tuple(things.split()),
        looks=tuple(looks.split()),
        good=tuple(good.split()),
        bad=tuple(bad.split()),
        verbs=tuple((base, past) for base, past in verb_forms),
        places=tuple(places.split("|")),
        items=tuple(items.split()),
        joys=tuple(joys.split("|")),
        woes=woes,
        **flags,
    )


TOPICS = (
    _topic(
        "cooking",
        "soup stew curry pie pizza salad omelette pudding sandwich",
        "spicy large warm green simple italian",
        "tasty delicious fresh",
        "salty bitter heavy",
        "make:made try:tried share:shared prepare:prepared",
        "in the kitchen|at home|in the garden|at the office|at the party",
        "pan bowl spoon knife",
        "tasted great|smelled wonderful|was gone very fast",
        ((SADNESS, "fell on the floor"), (DISGUST, "smelled terrible"), (ANGER, "was cold again")),
    ),
    _topic(
        "pets",
        "dog cat rabbit hamster parrot turtle kitten puppy pony",
        "little brown white black lazy young",
        "gentle funny clever",
        "loud wild dirty",
        "feed:fed wash:washed brush:brushed",
        "in the park|at home|at the farm|in the garden|by the river",
        "ball leash basket towel",
        "learned a new trick|played all day|made everyone laugh",
        ((FEAR, "ran away"), (SADNESS, "got very sick"), (ANGER, "broke the window")),
    ),
    _topic(
        "weather",
        "storm shower snowstorm thunderstorm sandstorm",
        "big sudden strong long dark",
        "exciting beautiful refreshing",
        "scary cold dangerous",
        "watch:watched see:saw film:filmed",
        "by the lake|at the beach|in the mountains|in the city|at the harbour",
        "umbrella coat camera torch",
        "cleaned the air|ended with a rainbow|cooled the whole city",
        ((FEAR, "came very close"), (ANGER, "broke the window"), (SADNESS, "ruined the picnic")),
        can_be_had=False,
    ),
    _topic(
        "travel",
        "island village castle beach temple harbour",
        "old small big famous sunny",
        "beautiful peaceful lovely",
        "crowded expensive dirty",
        "visit:visited explore:explored see:saw",
        "in spain|in italy|in france|in greece|in japan|in mexico",
        "map camera backpack guidebook",
        "was full of flowers|looked like a dream|had wonderful food",
        ((ANGER, "was closed"), (DISGUST, "was full of rubbish"), (FEAR, "was dark at night")),
        can_be_had=False,
    ),
    _topic(
        "work",
        "report letter speech plan contract article",
        "long short new big secret",
        "clear helpful useful",
        "boring confusing difficult",
        "write:wrote finish:finished check:checked",
        "at the office|at home|at the meeting|on the train|in the library",
        "laptop folder pen notebook",
        "impressed the boss|was ready in time|won a prize",
        ((ANGER, "got lost"), (SADNESS, "was full of mistakes"), (FEAR, "was almost too late")),
        can_be_had=False,
        can_be_shown=False,
    ),
    _topic(
        "sport",
        "match race game tournament contest",
        "big local short friendly summer",
        "exciting fair interesting",
        "slow boring dangerous",
        "watch:watched plan:planned join:joined",
        "at the stadium|in the park|at school|in the gym|at the beach",
        "ball shirt whistle towel",
        "had a great ending|brought us a medal|made the fans happy",
        ((SADNESS, "ended in the rain"), (ANGER, "started two hours late"), (FEAR, "ended with an accident")),
        can_be_had=False,
    ),
    _topic(
        "music",
        "guitar piano violin drum flute trumpet harp",
        "old new small red wooden",
        "lovely beautiful clear",
        "loud expensive heavy",
        "play:played buy:bought borrow:borrowed",
        "at school|at home|in the music shop|at the party|in the church",
        "book microphone chair bag",
        "sounded great|made everyone dance|sounded wonderful",
        ((SADNESS, "broke in two"), (ANGER, "was stolen"), (DISGUST, "sounded terrible")),
        has_price=True,
    ),
    _topic(
        "films",
        "film comedy cartoon thriller western musical",
        "new old short french famous",
        "funny clever exciting",
        "violent boring noisy",
        "watch:watched see:saw enjoy:enjoyed",
        "at the cinema|at home|on the plane|at the festival|at school",
        "blanket ticket cushion snack",
        "made everyone laugh|had a happy ending|won a prize",
        ((SADNESS, "had a sad ending"), (FEAR, "was full of monsters"), (ANGER, "stopped in the middle")),
        can_be_had=False,
    ),
    _topic(
        "health",
        "cream syrup pill vitamin spray powder bandage",
        "new white green small simple",
        "helpful gentle safe",
        "expensive weak sticky",
        "use:used try:tried buy:bought",
        "at the pharmacy|at home|at the hospital|in the gym|at work",
        "bottle towel thermometer glass",
        "worked very fast|stopped the pain|made everything better",
        ((DISGUST, "smelled terrible"), (FEAR, "made the pain worse"), (ANGER, "did not work")),
        has_price=True,
        can_be_shown=False,
    ),
    _topic(
        "clothes",
        "shirt jacket coat dress hat scarf sweater skirt belt",
        "red blue black long striped",
        "comfortable pretty lovely",
        "tight expensive thin",
        "buy:bought wear:wore choose:chose",
        "at the mall|at the market|in town|at the party|at work",
        "mirror bag card catalogue",
        "looked like new|looked great|made everyone smile",
        ((ANGER, "lost its colour"), (SADNESS, "got very dirty"), (DISGUST, "smelled of fish")),
        has_price=True,
    ),
    _topic(
        "school",
        "project poster poem essay drawing story",
        "big short colourful new difficult",
        "funny clever useful",
        "boring confusing late",
        "finish:finished start:started present:presented",
        "at school|in the library|in the classroom|at home|at the museum",
        "pencil ruler notebook marker",
        "got the best mark|made the teacher smile|was ready in time",
        ((SADNESS, "got a bad mark"), (ANGER, "got lost"), (FEAR, "was almost too late")),
        can_be_had=False,
    ),
    _topic(
        "family",
        "dinner picnic wedding party reunion lunch",
        "big small summer simple late",
        "lovely cheerful funny",
        "noisy long expensive",
        "plan:planned enjoy:enjoyed organize:organized",
        "at home|in the garden|by the lake|at the farm|in the village",
        "blanket cake camera basket",
        "made everyone happy|was full of music|had wonderful food",
        ((SADNESS, "ended in the rain"), (ANGER, "started two hours late"), (FEAR, "ended with an accident")),
        can_be_had=False,
    ),
    _topic(
        "gardening",
        "rose tulip tree bush lily sunflower herb",
        "red yellow tall little wild",
        "healthy pretty strong",
        "dry weak ugly",
        "plant:planted water:watered grow:grew",
        "in the garden|on the balcony|at the farm|behind the house|in the park",
        "shovel bucket pot ladder",
        "grew very fast|smelled wonderful|looked great",
        ((SADNESS, "died in the sun"), (DISGUST, "was full of insects"), (ANGER, "was stolen")),
    ),
    _topic(
        "trains",
        "train bus tram ferry taxi",
        "early late blue red small",
        "comfortable clean cheap",
        "slow noisy dirty",
        "take:took catch:caught",
        "at the station|in town|at the airport|in the city|at the harbour",
        "ticket suitcase map card",
        "came on time|had free seats|was half empty",
        ((ANGER, "came two hours late"), (FEAR, "almost crashed"), (DISGUST, "smelled terrible")),
        can_be_had=False,
    ),
    _topic(
        "phones",
        "phone laptop tablet camera speaker printer radio",
        "new old small black modern",
        "fast useful handy",
        "slow expensive confusing",
        "buy:bought repair:repaired test:tested",
        "at the shop|at home|at work|at school|in town",
        "charger cable manual battery",
        "worked very fast|looked like new|made life easy",
        ((ANGER, "did not work"), (SADNESS, "fell on the floor"), (FEAR, "almost caught fire")),
        has_price=True,
    ),
    _topic(
        "holidays",
        "hotel cabin tent hostel resort campsite",
        "small big old modern sunny",
        "cosy clean peaceful",
        "dirty noisy expensive",
        "book:booked choose:chose visit:visited",
        "by the lake|in the mountains|at the beach|in spain|in the forest",
        "suitcase towel map torch",
        "had a great view|was half the price|was half empty",
        ((DISGUST, "was full of insects"), (ANGER, "was closed"), (FEAR, "was dark at night")),
        can_be_had=False,
        has_price=True,
    ),
    _topic(
        "coffee",
        "coffee tea juice lemonade milkshake smoothie",
        "small large green cold simple",
        "tasty delicious refreshing",
        "bitter sour weak",
        "order:ordered drink:drank make:made",
        "at the cafe|at home|at the office|at the station|in the park",
        "cup straw spoon glass",
        "tasted great|smelled wonderful|made everyone happy",
        ((DISGUST, "tasted like soap"), (ANGER, "was cold again"), (SADNESS, "fell on the floor")),
        has_price=True,
    ),
    _topic(
        "books",
        "novel story comic diary biography",
        "long short old new famous",
        "exciting funny clever",
        "boring confusing slow",
        "read:read finish:finished borrow:borrowed",
        "in the library|on the train|at home|at the beach|in the garden",
        "lamp blanket bookmark card",
        "had a happy ending|made everyone laugh|was full of surprises",
        ((SADNESS, "had a sad ending"), (FEAR, "was full of monsters"), (ANGER, "lost its last page")),
    ),
    _topic(
        "neighbours",
        "ladder drill hammer saw toolbox",
        "old new long big red",
        "handy strong safe",
        "heavy loud dangerous",
        "borrow:borrowed use:used repair:repaired",
        "in the garage|next door|in the yard|in the cellar|on the balcony",
        "glove rope key box",
        "saved a lot of time|worked very fast|looked like new",
        ((ANGER, "broke in two"), (FEAR, "almost caught fire"), (SADNESS, "was stolen")),
    ),
    _topic(
        "money",
        "loan card contract offer bonus",
        "small big new simple special",
        "fair safe helpful",
        "dangerous expensive confusing",
        "compare:compared choose:chose accept:accepted",
        "at the bank|at work|in town|at the office|in the city",
        "passport pen letter folder",
        "saved a lot of money|made life easy|made everyone happy",
        ((ANGER, "had a secret fee"), (SADNESS, "came too late"), (FEAR, "was a trick")),
        can_be_shown=False,
    ),
    _topic(
        "moving",
        "flat house room studio cottage apartment",
        "small big white old modern",
        "cosy sunny lovely",
        "dark expensive noisy",
        "rent:rented visit:visited paint:painted",
        "in town|in the village|by the river|near the park|in the city",
        "box key lamp contract",
        "had a great view|was warm and dry|looked like new",
        ((DISGUST, "was full of insects"), (ANGER, "was already gone"), (FEAR, "was dark at night")),
        can_be_had=False,
    ),
    _topic(
        "presents",
        "gift balloon card candle cake necklace toy",
        "big red golden little colourful",
        "pretty lovely funny",
        "expensive boring ugly",
        "buy:bought choose:chose wrap:wrapped",
        "at the mall|at the market|at the shop|in town|at the office",
        "ribbon bag plate box",
        "made everyone smile|looked wonderful|was a big surprise",
        ((SADNESS, "broke in two"), (ANGER, "came too late"), (FEAR, "almost caught fire")),
        has_price=True,
    ),
    _topic(
        "furniture",
        "sofa chair table lamp shelf bed desk mirror",
        "old new wooden white big",
        "comfortable pretty cheap",
        "expensive ugly heavy",
        "buy:bought move:moved paint:painted",
        "at home|in the bedroom|in the kitchen|at the office|in the garage",
        "hammer box ladder brush",
        "looked like new|looked great|looked wonderful",
        ((SADNESS, "broke in two"), (ANGER, "lost its colour"), (DISGUST, "smelled of fish")),
        has_price=True,
    ),
    _topic(
        "cars",
        "car bike van scooter truck motorbike",
        "red old black small blue",
        "comfortable cheap safe",
        "slow loud expensive",
        "buy:bought repair:repaired clean:cleaned",
        "in the garage|in town|at work|on the street|in the yard",
        "helmet key bucket pump",
        "looked like new|was very fast|won a race",
        ((ANGER, "broke down again"), (FEAR, "almost crashed"), (SADNESS, "was stolen")),
        has_price=True,
    ),
    _topic(
        "art",
        "painting photo sketch portrait statue picture",
        "old modern big colourful famous",
        "beautiful lovely clever",
        "ugly dark expensive",
        "see:saw buy:bought sell:sold",
        "at the museum|in the gallery|at school|at the market|in the church",
        "frame brush ticket camera",
        "won a prize|looked wonderful|made everyone smile",
        ((SADNESS, "fell on the floor"), (ANGER, "was stolen"), (DISGUST, "looked terrible")),
        has_price=True,
    ),
    _topic(
        "courses",
        "course class lesson workshop seminar",
        "short long free french new",
        "exciting helpful funny",
        "difficult boring slow",
        "join:joined book:booked take:took",
        "at school|in town|in the gym|in the library|at work",
        "notebook pen book bag",
        "was full of jokes|made everyone smile|ended with a party",
        ((ANGER, "started two hours late"), (SADNESS, "ended too early"), (FEAR, "ended with a test")),
        can_be_had=False,
        can_be_shown=False,
    ),
    _topic(
        "games",
        "puzzle riddle quiz crossword maze",
        "big small new short old",
        "clever exciting funny",
        "difficult easy boring",
        "solve:solved try:tried finish:finished",
        "on the train|at home|at the party|at school|at the cafe",
        "pencil clock pen lamp",
        "made everyone laugh|was full of surprises|won a prize",
        ((ANGER, "was full of mistakes"), (SADNESS, "ended too early"), (FEAR, "was almost too late")),
        can_be_shown=False,
    ),
    _topic(
        "restaurants",
        "restaurant cafe bakery diner bar",
        "small new italian local old",
        "friendly cosy clean",
        "expensive crowded noisy",
        "visit:visited try:tried",
        "in town|near the park|at the station|by the river|at the beach",
        "card coat map ticket",
        "had wonderful food|had a great view|was full of music",
        ((DISGUST, "was full of insects"), (ANGER, "was closed"), (SADNESS, "was half empty")),
        can_be_had=False,
    ),
    _topic(
        "nature",
        "trail forest hill river lake mountain valley",
        "big green quiet long famous",
        "beautiful peaceful lovely",
        "steep dirty dangerous",
        "explore:explored visit:visited see:saw",
        "in the north|in the south|near the village|in spain|near the city",
        "map backpack compass rope",
        "was full of flowers|had a great view|looked like a dream",
        ((FEAR, "was full of snakes"), (DISGUST, "was full of rubbish"), (ANGER, "was closed")),
        can_be_had=False,
    ),
)

NAMES = (
    "anna",
    "ben",
    "clara",
    "david",
    "emma",
    "felix",
    "grace",
    "henry",
    "jack",
    "kate",
    "leo",
    "maria",
    "nina",
    "oscar",
    "paul",
    "rosa",
    "sam",
    "tina",
    "victor",
    "lucy",
)
RELATIVES = (
    "sister",
    "brother",
    "mother",
    "father",
    "uncle",
    "aunt",
    "cousin",
    "grandmother",
    "friend",
    "teacher",
    "neighbour",
    "boss",
)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAYS = ("tomorrow", *(f"on {day}" for day in WEEKDAYS), *(f"next {day}" for day in WEEKDAYS))
PAST_DAYS = ("yesterday", "last week", *(f"last {day}" for day in WEEKDAYS))
TIMES = ("at noon", "at four", "at five", "at six", "at seven", "at eight", "at nine", "at ten", "after lunch")
PRICES = ("ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
COLOURS = ("red", "blue", "green", "white", "black", "yellow")

FEELINGS = {ANGER: "angry", DISGUST: "disgusted", FEAR: "afraid", SADNESS: "sad"}

IRREGULAR_PLURALS = {"shelf": "shelves", "quiz": "quizzes", "scarf": "scarves"}
# Written with a vowel, spoken with a consonant, or the other way round.
IRREGULAR_ARTICLES = {"hour": "an", "honest": "an", "useful": "a", "used": "a", "european": "a"}
