"""A relay for TCP that has the bandwidth and the round-trip time of a link. Knows nothing of the measurements."""

import asyncio
import contextlib
import threading

CHUNK_BYTES = 32 << 10
# A queue of this time stands before the link. Connections whose bytes do not fit in it wait.
QUEUE_S = 0.05


class Direction:
    """The bytes of all connections in one direction, one after the other."""

    def __init__(self):
        self.free_at, self.bytes = 0.0, 0

    def take(self, now, count, mbit):
        """When the link has sent this many bytes."""
        self.bytes += count
        if mbit is None:
            return now
        self.free_at = max(now, self.free_at) + count * 8 / (mbit * 1e6)
        return self.free_at


class SlowLink:
    """Relays connections from a port of its own to `port`, for as long as the `with` lasts. Without a shape it adds nothing."""

    def __init__(self, port):
        self.target, self.port = port, None
        self.mbit, self.round_trip_s, self.requests = None, 0.0, 0
        self.to_server, self.to_client = Direction(), Direction()
        self.loop, self.ready = asyncio.new_event_loop(), threading.Event()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self.serve(),))

    def __enter__(self):
        self.thread.start()
        self.ready.wait()
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join()

    def shape(self, mbit, round_trip_ms=0.0):
        """The rate of each direction, None for no limit, and the time until the first byte of an answer."""
        self.mbit, self.round_trip_s = mbit, round_trip_ms / 1000

    async def serve(self):
        self.stopping = asyncio.Event()
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, limit=CHUNK_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.stopping.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def connection(self, client_reader, client_writer):
        await asyncio.sleep(self.round_trip_s)  # of the handshake
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        asks = [False]  # whether the last bytes were the client's
        try:
            await asyncio.gather(
                self.pump(client_reader, server_writer, self.to_server, asks, True),
                self.pump(server_reader, client_writer, self.to_client, asks, False),
            )
        except OSError:
            pass  # the other end sees the same
        finally:
            client_writer.close()
            server_writer.close()

    async def pump(self, reader, writer, direction, asks, is_client):
        """Each chunk arrives half a round trip after the link has sent it. Meanwhile the next ones are on their way."""
        on_their_way = asyncio.Queue()
        arrivals = asyncio.ensure_future(self.arrive(on_their_way, writer))
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                self.requests += is_client and not asks[0]
                asks[0] = is_client
                sent_at = direction.take(self.loop.time(), len(chunk), self.mbit)
                on_their_way.put_nowait((sent_at + self.round_trip_s / 2, chunk))
                if (early := sent_at - self.loop.time() - QUEUE_S) > 0:
                    await asyncio.sleep(early)
            on_their_way.put_nowait((0.0, None))
            await arrivals
        finally:
            arrivals.cancel()

    async def arrive(self, on_their_way, writer):
        while True:
            arrives_at, chunk = await on_their_way.get()
            if chunk is None:
                with contextlib.suppress(OSError):  # the other end is gone already
                    writer.write_eof()
                return
            if (later := arrives_at - self.loop.time()) > 0:
                await asyncio.sleep(later)
            writer.write(chunk)
            await writer.drain()
