"""The things of the game and their properties.

All things differ in at least one property. Fruits and vegetables count as food and not as alive.
"""

from __future__ import annotations

_THINGS = """
dog mouse elephant frog duck penguin eagle bee butterfly spider shark whale tree rose
apple banana potato pizza cookie sandwich
car bus ship airplane bicycle
chair plate pot book key coin ring button needle ball balloon kite drum guitar umbrella
"""
THINGS = tuple(_THINGS.split())

_YES = {
    "is it alive": "dog mouse elephant frog duck penguin eagle bee butterfly spider shark whale tree rose",
    "is it food": "apple banana potato pizza cookie sandwich",
    "is it made by people": """
        pizza cookie sandwich car bus ship airplane bicycle chair plate pot book key coin ring button needle ball
        balloon kite drum guitar umbrella
    """,
    "is it made of metal": "car bus ship airplane bicycle pot key coin ring needle",
    "is it round": "apple pizza cookie plate pot coin ring button ball balloon drum",
    "is it flat": "pizza cookie plate book key coin button kite",
    "is it smaller than a hand": "mouse frog bee butterfly spider apple potato cookie key coin ring button needle",
    "is it bigger than a car": "elephant whale tree bus ship airplane",
    "can it fly": "duck eagle bee butterfly airplane balloon kite",
    "does it make sounds": "dog mouse elephant frog duck penguin eagle bee whale car bus ship airplane drum guitar",
    "do you find it in water": "frog duck penguin shark whale ship",
    "do you find it in most kitchens": "apple banana potato pizza cookie sandwich chair plate pot",
}

PROPERTIES = {words: frozenset(things.split()) for words, things in _YES.items()}
"""By words of the question, the things for which the answer is yes."""
