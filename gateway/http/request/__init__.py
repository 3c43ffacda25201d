"""What a request passes before it is answered: the description of its route, who asks, how a form is read, what an
error looks like. This room knows no route by name."""
