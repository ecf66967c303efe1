"""Games of two players in which one wins what the other loses."""
