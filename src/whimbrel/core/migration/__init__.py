"""Migrations: who may change the table, how a plan is carried out, what is done after crashes.

``service.Migrations`` is the face. The master's side is ``control_loop`` (order of stages),
``recovery``, ``repair``, ``plan_queue`` and ``plan_execution``, ``publication``, ``progress``;
a participant's side is ``source``, ``destination``; ``keeper`` is where the table changes.
"""

from whimbrel.core.migration.service import Migrations

__all__ = ["Migrations"]
