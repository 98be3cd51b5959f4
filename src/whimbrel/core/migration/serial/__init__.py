"""How a cluster below version 4.1 migrates: one table version, one migration at a time (PIM-41).

Implementations of the interfaces of ``migration/mode.py``; the rest of the room knows nothing of
them. To drop them, delete this folder and the messages named ``Legacy...``, and let
``migration/service.py`` say ``PARALLEL`` where it says ``next_mode``. See docs/design/0009.
"""
