"""Tasks in dialogue acts: a user with a goal, a database, and an agent that decides what to say, turn by turn.

A world, such as `camrest`, supplies an ontology, a database, goals and a corpus. All the rest is shared.
"""
