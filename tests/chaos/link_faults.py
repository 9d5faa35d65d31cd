"""Faults of the link: cut anywhere, half-open, slow, in slices, lossy."""

from __future__ import annotations

import time

import anyio

from tests.chaos.stage import Stage
from tests.chaos.table import Short, fault
from tests.kit import (
    Cut,
    Delay,
    Direction,
    Hold,
    Late,
    Lose,
    Rate,
    Recovery,
    Refuse,
    Slices,
    Step,
    Swallow,
)

LATE = 1.5  # seconds
NOTICED = 10.0  # seconds within which a half-open link is noticed
LONGEST = 600  # bytes of what is cut, at most
BLOCKING, PREFETCH, COMPAT, RELIABLE = "blocking", "prefetch", "compat", "reliable"
RELIABLE_EIGHT = "reliable, prefetch 8"


# Command → modes that send it.
SWEPT: dict[str, tuple[str, ...]] = {
    "SET": (),
    "RPUSH": (),
    "LTRIM": (),
    "BLPOP": (BLOCKING, PREFETCH),
    "LPOP": (PREFETCH,),
    "BLMOVE": (RELIABLE, RELIABLE_EIGHT),
    "EVALSHA": (COMPAT, RELIABLE, RELIABLE_EIGHT, "run", "heartbeat", "sync"),
    "XREAD": ("follow",),
    "LRANGE": (COMPAT,),
}
ENDANGERING = {"BLPOP", "LPOP", "BLMOVE", "EVALSHA", "LRANGE"}


async def sweep(
    stage: Stage, command: str, direction: Direction = Direction.REPLIES
) -> None:
    """Cut at each byte of the next replies (or requests) of one command, from 0 on.

    The short form takes some of the bytes, by the row's seed.
    """
    short = sorted({0, 1, *stage.rng.sample(range(2, 40), 2)})
    endangers, reply = command in ENDANGERING, direction is Direction.REPLIES
    async with stage.load(reconnect_max=0.2, status_interval=0.1):
        for at in stage.pick(short, range(LONGEST)):
            armed = stage.proxy.arm(Cut(direction=direction, command=command, at=at))
            # Some are sent only when nothing waits, which may not happen by itself.
            fired = False
            for stage.resting, most in ((False, 4), (True, 20)):
                fired = fired or await stage.wait(lambda a=armed: bool(a.fired), most)  # type: ignore[misc]
            stage.resting = False
            if not fired:
                stage.proxy.disarm(armed)
                stage.complain(f"no {command} was sent")
                return
            stage.healed_at = time.monotonic()
            whole = armed.saw_end and at >= armed.seen  # all of it got through
            # A request in part is none, and nobody executes it.
            stage.damage.links += endangers and (reply or whole)
            await stage.recovered(f"{command} cut at {at}")
            if whole:
                return


def add_sweeps() -> None:
    """One row for each command whose reply is cut."""
    for command, modes in SWEPT.items():

        async def play(stage: Stage, command: str = command) -> None:
            await sweep(stage, command)

        name = f"cut at every byte of the reply of {command}"
        short = Short.EACH if modes else Short.ONE
        fault(f"F3-{command.lower()}", name, modes=modes, short=short)(play)


add_sweeps()


@fault("F3-blpop-sent", "cut at every byte of the request BLPOP", modes=(BLOCKING,))
async def cut_blpop_request(stage: Stage) -> None:
    await sweep(stage, "BLPOP", Direction.REQUESTS)


@fault("F3-rpush-sent", "cut at every byte of the request RPUSH", modes=(BLOCKING,))
async def cut_rpush_request(stage: Stage) -> None:
    await sweep(stage, "RPUSH", Direction.REQUESTS)


@fault("F3-all", "every connection cut at random moments", subjects=True)
async def cut_all(stage: Stage) -> None:
    async with stage.load():
        for number in range(stage.pick(4, 100)):
            await anyio.sleep(stage.rng.uniform(0, 0.2))
            async with stage.hurt():
                stage.proxy.break_all(reset=number % 2 == 0)
            stage.damage.links += 1
        await stage.recovered("cuts")


@fault("F4", "half-open in both directions", subjects=True)
async def half_open(stage: Stage) -> None:
    await silence(stage, None)


@fault("F5-requests", "one-way: requests vanish", subjects=True, short=Short.NONE)
async def requests_vanish(stage: Stage) -> None:
    await silence(stage, Direction.REQUESTS)


@fault("F5-replies", "one-way: replies vanish", subjects=True, short=Short.NONE)
async def replies_vanish(stage: Stage) -> None:
    await silence(stage, Direction.REPLIES)


async def silence(stage: Stage, direction: Direction | None) -> None:
    """Connections that are there become deaf; new ones are well at once."""
    stage.damage.recovery = stage.pick(20, NOTICED)
    async with stage.load(redis_timeout=stage.pick(0.5, 5.0)):
        for _ in range(stage.pick(1, 4)):
            await stage.busy()
            swallow = Swallow(direction=direction)
            async with stage.hurt(), stage.proxy.during(swallow):
                await anyio.sleep(stage.pick(0.1, 0.5))
            stage.damage.links += 1
            await stage.recovered("a half-open link")


@fault("F5-heals", "a partition that heals: all comes later", subjects=True)
async def held(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.5], [1, 2.5, 5, 10]):
            await stage.busy()
            async with stage.hurt(), stage.proxy.during(Hold()):
                await anyio.sleep(seconds)
            await stage.recovered("a partition")


@fault("F5-refuse", "nobody listens, connections cut", subjects=True)
async def refused(stage: Stage) -> None:
    async with stage.load():
        for seconds in stage.pick([0.3], [1, 5, 20]):
            await stage.busy()
            async with stage.hurt(), stage.proxy.during(Refuse()):
                stage.proxy.break_all()
                stage.damage.links += 1
                await anyio.sleep(seconds)
            await stage.recovered("refused connections")


@fault("F6-delay", "slow: 50, 500 and 1,500 ms each way", short=Short.ONE)
async def delayed(stage: Stage) -> None:
    stage.damage.recovery = stage.pick(20, NOTICED)
    async with stage.load(status_ttl=30):
        for seconds in stage.pick([0.05, 0.2], [0.05, 0.5, 1.5]):
            async with stage.proxy.during(Delay(seconds)):
                await anyio.sleep(stage.pick(0.6, 10))
            stage.healed_at = time.monotonic()
            await stage.recovered(f"a delay of {seconds} s")
    if stage.proxy.accepted > 3:  # a slow link is no broken one
        stage.complain(f"{stage.proxy.accepted} connections were made")


# Bytes per second → records that are put at once, and their length beyond 150 bytes.
NARROW = {5_000: (400, 100), 20_000: (1_000, 100), 50_000: (2_000, 950)}


async def narrow(stage: Stage, rate: int) -> None:
    """A log that one batch, sent again and again, would never get through in time."""
    stage.damage.recovery = stage.pick(20, 120)
    count, length = NARROW[rate]
    count = stage.pick(count // 20, count)
    async with stage.load(redis_timeout=stage.pick(0.2, 5.0)) as agent:
        await stage.busy()
        stage.resting = True
        await agent.flush(10)
        async with stage.proxy.during(Rate(rate)):
            began = time.monotonic()
            for _ in range(count):
                stage.history.log(agent, "x" * length)
            flushed = await agent.flush(stage.damage.recovery)
            took = time.monotonic() - began if flushed else None
        recovery = Recovery(f"{count} records at {rate} B/s", took)
        stage.history.evidence.recoveries.append(recovery)
        stage.resting = False
        stage.healed_at = time.monotonic()
        await stage.recovered("a narrow link")
    events = stage.history.events
    logged = [event.id for event in events(Step.LOGGED)]
    if [event.id for event in events(Step.FOUND)] != logged:
        stage.complain("the list does not hold every record once, in order")


def add_narrow_links() -> None:
    """One row for each rate; the time in the ledger is what the records took."""
    for rate in NARROW:

        async def play(stage: Stage, rate: int = rate) -> None:
            await narrow(stage, rate)

        name = f"narrow: {rate // 1_000} kB/s, {NARROW[rate][0]:,} records at once"
        short = Short.ONE if rate == 20_000 else Short.NONE
        fault(f"F6-rate-{rate // 1_000}", name, short=short)(play)


add_narrow_links()


@fault("F6-slices", "seven bytes at a time", subjects=True)
async def sliced(stage: Stage) -> None:
    async with stage.load():
        async with stage.hurt(), stage.proxy.during(Slices(7)):
            await stage.busy(stage.pick(5, 100))
        await stage.recovered("slices")


@fault(
    "F6-late", f"one reply in ten is {LATE:g} s late", subjects=True, short=Short.NONE
)
async def late(stage: Stage) -> None:
    stage.damage.recovery += LATE  # the last of them arrives so long after the end
    async with stage.load():
        async with stage.hurt():
            armed = stage.proxy.arm(Late(seconds=LATE, chance=0.1, times=None))
            await anyio.sleep(20)
            stage.proxy.disarm(armed)
        await stage.recovered("late replies")


@fault("F4-lost", "one reply of RPUSH in three is swallowed", short=Short.ONE)
async def lost_answers(stage: Stage) -> None:
    stage.damage.recovery = stage.pick(20, NOTICED)
    async with stage.load(redis_timeout=0.3):
        lose = Lose(command="RPUSH", chance=1 / 3, times=stage.pick(2, 20))
        armed = stage.proxy.arm(lose)
        await stage.wait(lambda: armed.is_spent, 30)
        stage.healed_at = time.monotonic()
        stage.damage.links += armed.fired
        await stage.recovered("lost answers")
