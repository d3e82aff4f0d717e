"""Where Spark looks for the format ``shardd``: it imports packages named ``pyspark_*`` and registers their ``DefaultSource``."""

from shardd.spark import ShardSource as DefaultSource

__all__ = ["DefaultSource"]
