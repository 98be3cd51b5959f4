"""Which member holds which replica of which partition, and how that changes.

A library of pure functions and one class, used by the other rooms; it imports none of them.

* ``hashing``: key to partition, the stamp of a table.
* ``table``: rows and versions of all partitions.
* ``planner``: the steps from one row to another.
* ``groups``: which members may not hold two replicas of one partition.
* ``assignment``: who should hold what; its parts are ``quotas`` (how many each), ``board`` (the
  working state and what may change at no further copy) and ``levelling`` (chains of changes).
* ``bounds``: how few copies a change needs.
"""
