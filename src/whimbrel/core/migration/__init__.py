"""Migrations: who may change the table, how a plan is carried out, what is done after crashes.

``service.Migrations`` is the face. The master's side is ``control_loop`` (order of stages),
``member_changes``, ``recovery``, ``repair``, ``plan_queue``, ``plan_execution``, ``publication``
and ``progress``; a participant's side is ``source`` and ``destination``; ``state_manager`` is where
the table changes, ``loopback`` how messages leave, ``reporter`` what listeners hear.
"""

from whimbrel.core.migration.service import Migrations

__all__ = ["Migrations"]
