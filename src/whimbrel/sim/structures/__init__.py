"""Kinds of structures, one package each: calls, ledgers, answers, and the rules of one kind."""
