"""The Spark side: ``format("whimbrel")`` and a session that works on a bare machine.

``session`` is loaded when first used; nothing here needs Spark until then.
"""

from __future__ import annotations

from whimbrel.spark.launch import session

__all__ = ["session"]
