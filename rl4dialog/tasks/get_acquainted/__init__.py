"""Two people get to know each other: each has a persona of five facts, and can ask for those of the other one."""
