"""The limits of the disk, for cold.py: rows read here and there past the page cache, by threads. Not loaders: they give no rows."""

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

    def epoch(self, seed):
        order = np.random.default_rng(seed).permutation(len(self.source))
        done, failed = [0] * self.depth, []

        def read(thread):
            row_bytes = self.kind.row_bytes
            buffer = mmap.mmap(-1, row_bytes // BLOCK * BLOCK + 2 * BLOCK)
            file = os.open(self.source.path, os.O_RDONLY | os.O_DIRECT)
            try:
                for number in order[thread :: self.depth].tolist():
                    start = number * row_bytes
                    at = start // BLOCK * BLOCK
                    length = -(-(start + row_bytes - at) // BLOCK) * BLOCK
                    os.preadv(file, [memoryview(buffer)[:length]], at)
                    done[thread] += 1
            except OSError as error:
                failed.append(error)
            finally:
                os.close(file)

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


class Random8(Random):
    title, depth = "random reads past the page cache, 8 at a time", 8


class Random32(Random):
    title, depth = "random reads past the page cache, 32 at a time", 32


class Random64(Random):
    title, depth = "random reads past the page cache, 64 at a time", 64
