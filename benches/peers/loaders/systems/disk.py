"""The limits of the disk, for cold.py: rows read here and there past the page cache, by threads. Not loaders: they give no rows."""

import bisect
import itertools
import mmap
import os
import threading
import time

import numpy as np

from .plain import FromNumpy

BLOCK = mmap.PAGESIZE


class Random(FromNumpy):
    """Every row of the source once, in a shuffled order, `depth` at a time. Its batches have numbers alone."""

    depth = 1

    def files(self):
        """The files that the rows lie in."""
        return [self.source.path]

    def epoch(self, seed):
        row_bytes = self.kind.row_bytes
        files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in self.files()]
        # The number of the first row behind each file.
        ends = list(itertools.accumulate(os.fstat(file).st_size // row_bytes for file in files))
        order = np.random.default_rng(seed).permutation(ends[-1])
        done, failed = [0] * self.depth, []

        def read(thread):
            buffer = mmap.mmap(-1, row_bytes // BLOCK * BLOCK + 2 * BLOCK)
            try:
                for number in order[thread :: self.depth].tolist():
                    file = bisect.bisect_right(ends, number)
                    start = (number - (ends[file - 1] if file else 0)) * row_bytes
                    at = start // BLOCK * BLOCK
                    length = -(-(start + row_bytes - at) // BLOCK) * BLOCK
                    os.preadv(files[file], [memoryview(buffer)[:length]], at)
                    done[thread] += 1
            except OSError as error:
                failed.append(error)

        threads = [threading.Thread(target=read, args=(thread,), daemon=True) for thread in range(self.depth)]
        for thread in threads:
            thread.start()
        given, running = 0, True
        while running:
            running = any(thread.is_alive() for thread in threads)
            if failed:
                raise failed[0]
            if (more := sum(done) - given) or not running:
                yield None, order[given : given + more]
                given += more
            time.sleep(0.005)
        for file in files:
            os.close(file)


class Random8(Random):
    title, depth = "random reads past the page cache, 8 at a time", 8


class Random32(Random):
    title, depth = "random reads past the page cache, 32 at a time", 32


class Random64(Random):
    title, depth = "random reads past the page cache, 64 at a time", 64
