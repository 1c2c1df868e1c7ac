"""Worlds with rules of their own: partner, scripted players and datapool of each task in one package."""
