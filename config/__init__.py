"""What an operator can set, what it is when nothing is set, and what each language needs."""
