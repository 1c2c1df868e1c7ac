"""Goals of single turns, such as asking about pets, and who speaks to reach them."""
