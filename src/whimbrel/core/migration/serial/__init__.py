"""How a cluster below version 4.1 migrates: one table version, one migration at a time (PIM-41).

The modern rooms know nothing of this one: ``cluster_mode`` is where the face of the migration room
finds what to build for a cluster version. What both have in common (planner, repair decisions,
copying) is taken from the modern rooms. To drop it, delete this folder, the messages named
``Legacy...`` and the mention of ``cluster_mode`` in ``migration/service.py``. See docs/design/0009.
"""
