"""Stand-ins for the slow and the nondeterministic parts, shared by every test layer."""
