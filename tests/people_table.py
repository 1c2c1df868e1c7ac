"""A made-up table of dialogues: people with their own habits want rides, and a clerk asks for what is missing."""

import json
import random

NAMES = ["Ann", "Bob", "Cleo", "Dan", "Eve", "Finn"]
PLACES = ["Castle", "Harbor", "Market", "Museum", "Station", "Zoo"]
GREETINGS = ["hi", "hello there", "hey", "good day", "i need help"]
FORMS = ["{}", "it is {} .", "{} , please", "well , {}", "that would be {} ."]
ASKED = {"name": "What is your name ?", "place": "Where to ?", "hour": "At what time ?"}


def dialogue(person, number):
    rng, habit = random.Random(f"{person}/{number}"), random.Random(person)
    wanted = {"name": rng.choice(NAMES), "place": rng.choice(PLACES), "hour": f"{rng.randint(1, 12)} pm"}
    greeting, form, begins_with = habit.choice(GREETINGS), habit.choice(FORMS), habit.choice([None, *wanted])
    said = [("user", greeting if begins_with is None else f"{greeting} , {form.format(wanted[begins_with])}")]
    for slot in rng.sample([*wanted], 3):
        if slot != begins_with:
            said += [("assistant", ASKED[slot]), ("user", form.format(wanted[slot]))]
    said += [("assistant", f"{wanted['name']} to {wanted['place']} at {wanted['hour']} , booked ."), ("user", "thanks")]
    goal = f"You are {wanted['name']} and want a ride to {wanted['place']} at {wanted['hour']}."
    return {"messages": [{"role": role, "content": text} for role, text in said], "goal": goal, "user": person}


def write_people(path, n_people=18, n_each=16):
    rows = [dialogue(f"P{person}", number) for number in range(n_each) for person in range(n_people)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path
