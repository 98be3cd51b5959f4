"""Migrations: who may change the table, how a plan is carried out, what is done after crashes.

``service.Migrations`` is the face. ``mode`` names what differs by cluster version; ``parallel``,
``publication`` and ``settlement`` are one implementation of it, ``serial`` is the other. The
master's side is ``control_loop`` (order of stages), ``member_changes``, ``recovery``, ``repair``,
``plan_queue`` and ``plan_execution``; a participant's side is ``source`` and ``destination``;
``state_manager`` is where the table changes, ``loopback`` and ``requests`` are how messages leave
and are repeated, ``reporter`` is where what happens becomes events, figures and notes.
"""

from whimbrel.core.migration.service import Migrations

__all__ = ["Migrations"]
