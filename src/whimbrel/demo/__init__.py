"""The main job as a demonstration: Spark loads real data while members come, leave and die.

``job`` is the plot, ``cluster`` changes the members, ``probe`` is a client that keeps a ledger,
``data`` the tables, ``narrate`` what is seen meanwhile, ``report`` what is left behind.
"""
