"""Network namespaces for nodes, each with a link that the kernel's token bucket (tbf) shapes in both directions. A delay is that of a
relay in user space, since not every kernel has netem. Needs Linux and root. Knows nothing of the measurements."""

import ctypes
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
# A queue of this time stands before each link; datagrams that do not fit are dropped.
QUEUE = "50ms"
MTU = 1500
BURST_S = 0.002
# The relay's device, and the routing table that leads to it.
DELAYED, TABLE = "delayed0", "78"


def run(*words, **settings):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, **settings).stdout


class Network:
    """One namespace with a link for each of `count` nodes, all at one switch. While the `with` lasts, this process is at the switch.

    A node's link has the rate of `shape`. With `quiet`, each node has a second link that is never shaped, at `quiet(number)`: for
    what is not to compete with the exchange."""

    def __init__(self, count, quiet=False):
        # Several programs may have networks at the same time.
        self.count, self.prefix, self.has_quiet = count, f"shardd-shaped-{os.getpid()}", quiet
        self.made, self.relay, self.home = [], None, None

    @property
    def hub(self):
        return f"{self.prefix}-hub"

    def name(self, number):
        return f"{self.prefix}-{number}"

    def address(self, number):
        return f"10.78.{number}.2"

    def quiet(self, number):
        return f"10.79.{number}.2"

    def switch(self):
        """An address of this process that nodes reach over their second links."""
        return "10.79.0.1"

    def inside(self, number):
        """The words before a command that is to run at a node."""
        return ["ip", "netns", "exec", self.name(number)]

    def __enter__(self):
        try:
            self.namespace(self.hub)
            self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
            with open(f"/run/netns/{self.hub}") as hub:
                enter(hub.fileno())
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            for number in range(self.count):
                self.namespace(self.name(number))
                self.link(number, "link", self.address(number))
                if self.has_quiet:
                    self.link(number, "quiet", self.quiet(number))
                run("ip", "-n", self.name(number), "route", "add", "default", "via", f"10.78.{number}.1")
                if self.has_quiet:
                    run("ip", "-n", self.name(number), "route", "add", "10.79.0.0/16", "via", f"10.79.{number}.1")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.delay(0)
        if self.home is not None:
            enter(self.home)
            os.close(self.home)
            self.home = None
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.made = []

    def namespace(self, name):
        run("ip", "netns", "add", name)
        self.made.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")

    def link(self, number, kind, address):
        name, here, there = self.name(number), f"{kind}{number}", f"{kind}0"
        run("ip", "-n", self.hub, "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run("ip", "-n", self.hub, "addr", "add", address[:-1] + "1/24", "dev", here)
        run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", there)
        run("ip", "-n", self.hub, "link", "set", here, "up")
        run("ip", "-n", name, "link", "set", there, "up")

    def shape(self, mbit):
        """Gives every node's link this rate, in both directions; None: that of memory."""
        for number in range(self.count):
            for place, device in [(self.hub, f"link{number}"), (self.name(number), "link0")]:
                subprocess.run(["tc", "-n", place, "qdisc", "del", "dev", device, "root"], check=False, stderr=subprocess.DEVNULL)
                if mbit is not None:
                    burst = max(16 * MTU, int(mbit * 1e6 / 8 * BURST_S))
                    shape = ["tbf", "rate", f"{mbit}mbit", "burst", burst, "latency", QUEUE]
                    run("tc", "-n", place, "qdisc", "add", "dev", device, "root", *shape)

    def delay(self, ms):
        """Datagrams between nodes take this time longer each way."""
        if self.relay is not None:
            self.relay.send_signal(signal.SIGTERM)
            self.relay.wait()
            self.relay = None
            for _ in range(self.count):
                run("ip", "-n", self.hub, "rule", "del", "lookup", TABLE)
        if not ms:
            return
        words = [sys.executable, "-B", __file__, str(ms)]
        self.relay = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.relay.stdout.readline() == "ready\n", "the relay does not run"
        run("ip", "-n", self.hub, "link", "set", DELAYED, "up", "txqueuelen", "100000")
        run("ip", "-n", self.hub, "route", "add", "default", "dev", DELAYED, "table", TABLE)
        for number in range(self.count):
            run("ip", "-n", self.hub, "rule", "add", "iif", f"link{number}", "to", "10.78.0.0/16", "lookup", TABLE)

    def sent_bytes(self):
        """What each node has sent over its link, with all headers."""
        links = json.loads(run("ip", "-n", self.hub, "-s", "-j", "link", "show"))
        by_name = {link["ifname"]: link["stats64"]["rx"]["bytes"] for link in links}
        return [by_name[f"link{number}"] for number in range(self.count)]


def enter(namespace):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace: run this as root")


def relay(ms):
    """Reads packets from a device and writes them back later: the kernel then routes them to where they go."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DELAYED.encode(), IFF_TUN | IFF_NO_PI))
    print("ready", flush=True)
    later, seconds = deque(), ms / 1000
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        now = time.monotonic()
        while later and later[0][0] <= now:
            try:
                os.write(device, later.popleft()[1])
            except OSError:
                pass  # the device is down: the packet is lost
        wait = later[0][0] - now if later else None
        if select.select([device], [], [], wait)[0]:
            try:
                for _ in range(64):
                    later.append((time.monotonic() + seconds, os.read(device, 65536)))
            except OSError:
                pass  # no more, or the device is not up yet
                if not later:
                    time.sleep(0.001)


if __name__ == "__main__":
    relay(float(sys.argv[1]))
