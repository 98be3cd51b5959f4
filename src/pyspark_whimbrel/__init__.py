"""Where Spark looks: it imports every top-level module named ``pyspark_*`` and registers the
``DefaultSource`` it finds, so that ``format("whimbrel")`` needs no registration.
"""

from __future__ import annotations

from whimbrel.spark.source import WhimbrelSource as DefaultSource

__all__ = ["DefaultSource"]
