"""Topologies of real processes on loopback: Sentinel and Cluster, to be hurt.

Every process is watched as a :class:`DevServer` is: none outlives the test, even if that
is killed. Nothing but the servers' own commands builds and changes a topology.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from bls_agent.devserver import DevServer, ServerProcess, find_server_binary

LOOPBACK = "127.0.0.1"
SLOTS = 16_384
DOWN_AFTER = 0.8  # seconds until a sentinel holds a silent server for down
NODE_TIMEOUT = 1.2  # seconds until the nodes of a cluster hold one for down


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on, nor on a cluster's second one.

    None of them is one that the system gives to outgoing connections.
    """
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + secrets.randbelow(10_000)
        if port not in found and _is_free(port) and _is_free(port + 10_000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def ask(port: int, *words: object) -> Any:
    """Send one request to a node, over a connection of its own."""
    with Redis(LOOPBACK, port, protocol=2, socket_timeout=5) as client:
        bare: Any = client.connection_pool.make_connection()
        try:
            bare.send_command(*words)
            return bare.read_response()
        finally:
            bare.disconnect()


async def until(condition: Callable[[], bool], timeout: float = 80.0) -> None:
    """Wait for a condition that asks servers; one that does not answer is not there."""
    async with asyncio.timeout(timeout):
        while True:
            try:
                if await asyncio.to_thread(condition):
                    return
            except (RedisError, OSError):
                pass
            await asyncio.sleep(0.05)


class SentinelProcess:
    """A sentinel: a server of ours that needs a file of its own to write to."""

    def __init__(self, port: int, lines: Sequence[str]) -> None:
        self.port = port
        self._folder = Path(
            tempfile.gettempdir(), f"bls-sentinel-{secrets.token_hex(8)}"
        )
        self._folder.mkdir(mode=0o700)
        self._file = self._folder / "sentinel.conf"
        self._file.write_text("\n".join([f"port {port}", *lines, ""]), "utf-8")
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it, or start it again with what it had written down."""
        binary = str(find_server_binary(os.environ))
        command = [binary, str(self._file), "--sentinel"]
        self.kill()
        self._process = ServerProcess(command, self.port, self._folder)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class OneSentinel(SentinelProcess):
    """One sentinel alone, whose word can be changed."""

    service = "main"

    def __init__(self, master: DevServer, lines: Sequence[str]) -> None:
        watch = f"sentinel monitor {self.service} {LOOPBACK} {master.port} 1"
        super().__init__(free_ports(1)[0], [f"bind {LOOPBACK}", watch, *lines])

    @property
    def url(self) -> str:
        """What an agent is given."""
        return f"redis+sentinel://{LOOPBACK}:{self.port}/{self.service}"

    def point_to(self, master: DevServer) -> None:
        """Name another master from now on."""
        ask(self.port, "SENTINEL", "REMOVE", self.service)
        ask(self.port, "SENTINEL", "MONITOR", self.service, LOOPBACK, master.port, 1)


class Topology:
    """Several processes that run as long as the block lasts."""

    async def start(self) -> None:
        """Start them all, and wait until they know each other."""
        raise NotImplementedError

    def stop(self) -> None:
        """End them all."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class SentinelTopology(Topology):
    """Three sentinels, a master and a replica.

    Attributes:
        service: The master's name.
        servers: The two servers; which of them is the master changes.
        sentinels: The three sentinels.
    """

    service = "订单主库"

    def __init__(self) -> None:
        ports = free_ports(5)
        first, second = ports[:2]
        replica = ("--replicaof", f"{LOOPBACK} {first}")
        common = ("--repl-diskless-sync-delay", "0", "--appendfsync", "no")
        self.servers = [
            DevServer(port=first, append_only=True, options=common),
            DevServer(port=second, append_only=True, options=(*common, *replica)),
        ]
        names = [secrets.token_hex(20) for _ in ports[2:]]
        self.sentinels = [
            SentinelProcess(port, self._lines(ports, names, number))
            for number, port in enumerate(ports[2:])
        ]

    @classmethod
    @contextlib.asynccontextmanager
    async def alone(cls, master: DevServer, *lines: str) -> AsyncIterator[OneSentinel]:
        """Give one sentinel that watches a server, which it cannot replace.

        Args:
            master: The server.
            lines: More of the sentinel's configuration.
        """
        sentinel = OneSentinel(master, lines)
        try:
            sentinel.start()
            yield sentinel
        finally:
            sentinel.stop()

    def _lines(self, ports: Sequence[int], names: Sequence[str], me: int) -> list[str]:
        """Introduce the sentinels to each other: finding out would take seconds."""
        others = [
            f"sentinel known-sentinel {self.service} {LOOPBACK} {port} {name}"
            for number, (port, name) in enumerate(zip(ports[2:], names, strict=True))
            if number != me
        ]
        return [
            f"bind {LOOPBACK}",
            f"sentinel myid {names[me]}",
            f"sentinel monitor {self.service} {LOOPBACK} {ports[0]} 2",
            f"sentinel down-after-milliseconds {self.service} {int(DOWN_AFTER * 1000)}",
            f"sentinel failover-timeout {self.service} 1500",
            f"sentinel known-replica {self.service} {LOOPBACK} {ports[1]}",
            *others,
        ]

    @property
    def url(self) -> str:
        """What an agent is given."""
        hosts = ",".join(f"{LOOPBACK}:{s.port}" for s in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    async def start(self) -> None:
        """Start everything and wait until a failover would succeed."""
        for server in self.servers:
            server.start()
        for sentinel in self.sentinels:
            sentinel.start()
        await self.ready()

    def stop(self) -> None:
        """End everything."""
        for sentinel in self.sentinels:
            sentinel.stop()
        for server in self.servers:
            server.stop()

    async def ready(self) -> None:
        """Wait until every sentinel sees a master with a replica in good health."""
        await until(lambda: all(map(self._is_ready, self.sentinels)))

    def _is_ready(self, sentinel: SentinelProcess) -> bool:
        replicas = ask(sentinel.port, "SENTINEL", "REPLICAS", self.service)
        fields = [dict(zip(r[::2], r[1::2], strict=True)) for r in replicas]
        return len(fields) == 1 and (
            fields[0][b"flags"] == b"slave"
            and fields[0][b"master-link-status"] == b"ok"
            and ask(sentinel.port, "SENTINEL", "CKQUORUM", self.service)[:2] == b"OK"
            and ask(self.master.port, "ROLE")[0] == b"master"
        )

    @property
    def master(self) -> DevServer:
        """The server that the first living sentinel names."""
        for sentinel in self.sentinels:
            with contextlib.suppress(RedisError, OSError):
                _, port = ask(
                    sentinel.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service
                )
                return next(s for s in self.servers if s.port == int(port))
        message = "no sentinel answers"
        raise RuntimeError(message)

    @property
    def master_port(self) -> int:
        """The port of the server that says it is the master."""
        ports = [server.port for server in self.servers]
        return next(port for port in ports if ask(port, "ROLE")[0] == b"master")

    async def switched(self, before: DevServer) -> DevServer:
        """Wait until another server is the master, and give it."""
        await until(
            lambda: (
                self.master is not before
                and ask(self.master.port, "ROLE")[0] == b"master"
            )
        )
        return self.master

    async def left(self, before: DevServer) -> None:
        """Wait until nobody of ours is connected to a server that was the master.

        It lives on as one until the sentinels demote it: what is written there is lost.
        """
        await until(lambda: b" name=bls-" not in ask(before.port, "CLIENT", "LIST"))

    async def failover(self) -> DevServer:
        """Have the sentinels change the master, and give the new one."""
        before = self.master

        def began() -> bool:
            """Sentinels refuse a second failover that follows too soon."""
            ask(self.sentinels[0].port, "SENTINEL", "FAILOVER", self.service)
            return True

        await until(began)
        return await self.switched(before)


class ClusterTopology(Topology):
    """Three masters, each with a third of the slots, and some replicas.

    Attributes:
        nodes: All nodes, masters first.
    """

    masters = 3

    def __init__(self, replicas: int = 1) -> None:
        options = (
            *("--cluster-enabled", "yes"),
            *("--cluster-node-timeout", str(int(NODE_TIMEOUT * 1000))),
            *("--cluster-require-full-coverage", "no"),
            *("--cluster-replica-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
            # Redis 7 lists a replica only after its master's first byte, which is a ping.
            *("--repl-ping-replica-period", "1"),
            *("--appendfsync", "no"),
        )
        self.nodes = [
            DevServer(port=port, append_only=True, options=options)
            for port in free_ports(self.masters + replicas)
        ]

    @property
    def url(self) -> str:
        """What an agent is given: two of the nodes are enough."""
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://{hosts}"

    async def start(self) -> None:
        """Start the nodes, introduce them, share out the slots."""
        for node in self.nodes:
            node.start()
        first, *others = self.nodes
        for number, node in enumerate(self.nodes[: self.masters]):
            low = SLOTS * number // self.masters
            high = SLOTS * (number + 1) // self.masters - 1
            ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            ask(node.port, "CLUSTER", "ADDSLOTS", *range(low, high + 1))
        for node in others:
            ask(node.port, "CLUSTER", "MEET", LOOPBACK, first.port)
        await until(
            lambda: all(len(self._known(n)) == len(self.nodes) for n in self.nodes)
        )
        for number, node in enumerate(self.nodes[self.masters :]):
            ask(node.port, "CLUSTER", "REPLICATE", self.id_of(self.nodes[number]))
        await self.ready()

    def stop(self) -> None:
        """End every node."""
        for node in self.nodes:
            node.stop()

    def _known(self, node: DevServer) -> list[list[str]]:
        lines = ask(node.port, "CLUSTER", "NODES").decode().splitlines()
        return [line.split() for line in lines if "handshake" not in line]

    def id_of(self, node: DevServer) -> str:
        """Give a node's name in the cluster."""
        return str(ask(node.port, "CLUSTER", "MYID").decode())

    async def ready(self) -> None:
        """Wait until all nodes agree, and every replica has its master's data."""
        try:
            await until(lambda: self._agree() and all(map(self._is_ready, self.nodes)))
        except TimeoutError as error:
            for node in self.nodes:
                with contextlib.suppress(RedisError, OSError):
                    error.add_note(ask(node.port, "CLUSTER", "NODES").decode())
            raise

    def _agree(self) -> bool:
        """Return whether all nodes know the same masters: one that hung knows old ones."""
        views = [ask(node.port, "CLUSTER", "SLOTS") for node in self.nodes]
        masters = [sorted([*row[:2], row[2][1]] for row in view) for view in views]
        return masters.count(masters[0]) == len(masters)

    def _is_ready(self, node: DevServer) -> bool:
        info = ask(node.port, "CLUSTER", "INFO")
        slots = ask(node.port, "CLUSTER", "SLOTS")
        served = sum(last - first + 1 for first, last, *_ in slots)
        copies = sum(len(nodes) - 1 for _, _, *nodes in slots)
        role = ask(node.port, "ROLE")
        return (
            b"cluster_state:ok" in info
            and served == SLOTS
            and copies >= len(self.nodes) - self.masters
            and (role[0] == b"master" or role[3] == b"connected")
        )

    def owner(self, slot: int) -> DevServer:
        """Give the node that serves a slot, as the living ones see it."""
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                for first, last, master, *_ in ask(node.port, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(n for n in self.nodes if n.port == master[1])
        message = f"nobody serves slot {slot}"
        raise RuntimeError(message)

    def slots_of(self, node: DevServer) -> list[range]:
        """Give the slots that a node serves."""
        found = ask(self.nodes[-1].port, "CLUSTER", "SLOTS")
        return [
            range(first, last + 1)
            for first, last, master, *_ in found
            if master[1] == node.port
        ]

    async def switched(self, slot: int, before: DevServer) -> DevServer:
        """Wait until the living nodes agree that another one serves the slot."""

        def agreed() -> bool:
            seen = set()
            for node in self.nodes:
                if node is before:
                    continue
                for first, last, master, *_ in ask(node.port, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        seen.add(master[1])
            return len(seen) == 1 and before.port not in seen

        await until(agreed)
        return next(n for n in self.nodes if n is self._owner_but(slot, before))

    def _owner_but(self, slot: int, gone: DevServer) -> DevServer:
        node = next(n for n in self.nodes if n is not gone)
        for first, last, master, *_ in ask(node.port, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(n for n in self.nodes if n.port == master[1])
        raise RuntimeError

    def replica_of(self, master: DevServer) -> DevServer | None:
        """Give a replica of a node, if it has one."""
        for node in self.nodes:
            role = ask(node.port, "ROLE")
            if role[0] == b"slave" and role[2] == master.port:
                return node
        return None

    def master_with_replica(self) -> DevServer:
        """Give a node that another one can take over from."""
        masters = (n for n in self.nodes if ask(n.port, "ROLE")[0] == b"master")
        return next(node for node in masters if self.replica_of(node) is not None)

    def other_master(self, node: DevServer) -> DevServer:
        """Give a master that is not this node."""
        return next(
            n
            for n in self.nodes
            if n is not node and ask(n.port, "ROLE")[0] == b"master"
        )

    def begin_migration(self, slot: int, target: DevServer) -> DevServer:
        """Put a slot on its way to another node, and give the one that it leaves."""
        source = self.owner(slot)
        ask(target.port, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        ask(source.port, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: DevServer, target: DevServer) -> None:
        """Move what lies in the slot now."""
        while keys := ask(source.port, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            ask(
                source.port,
                "MIGRATE",
                LOOPBACK,
                target.port,
                "",
                0,
                5000,
                "KEYS",
                *keys,
            )

    def end_migration(self, slot: int, target: DevServer) -> None:
        """Tell everybody that the slot has arrived: its new node first.

        Wait until all masters know the new node's epoch. Otherwise one of them could
        next claim a slot of the new node with a lower epoch, and lose it at once to the
        new node, which then gives it away: nobody would serve this slot any more.
        """
        name = self.id_of(target)
        masters = [n for n in self.nodes if ask(n.port, "ROLE")[0] == b"master"]
        for node in sorted(masters, key=lambda node: node is not target):
            ask(node.port, "CLUSTER", "SETSLOT", slot, "NODE", name)
        deadline = time.monotonic() + 20
        while len({self._epoch(node, name) for node in masters}) > 1:
            assert time.monotonic() < deadline, "the masters do not agree on an epoch"
            time.sleep(0.005)

    def _epoch(self, node: DevServer, name: str) -> str:
        """Return the epoch of a node, as another node knows it."""
        return next(row[6] for row in self._known(node) if row[0] == name)

    def migrate(self, slot: int, target: DevServer) -> None:
        """Move a slot and what lies in it to another node."""
        source = self.begin_migration(slot, target)
        self.move_keys(slot, source, target)
        self.end_migration(slot, target)
