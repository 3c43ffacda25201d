"""The second leg of a call: when it is called, what each side hears meanwhile, and what the application is told. This
room knows the first call by its seat and its description, and decides nothing about turns."""
