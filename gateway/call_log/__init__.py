"""Storage of ended calls: what is kept, for how long, and how it is found again. This room knows no live call and no
request."""
