"""The rules of what is trained: a model of one's own, a frozen one, shared parameters, expert slots, several tasks."""
