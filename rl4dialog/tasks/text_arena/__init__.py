"""Games of TextArena, an optional package: the other players and the rules are the partner."""
