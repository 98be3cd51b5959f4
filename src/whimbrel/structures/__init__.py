"""The kinds of structures, one folder each; ``kinds.KINDS`` is the list of them."""
