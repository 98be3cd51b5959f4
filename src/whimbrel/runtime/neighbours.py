"""Clusters of our name on this machine that we were not told to join.

Two members that are started by hand without ``--join`` stay apart, each with a cluster of its own,
and nothing is wrong with either. So who founds a cluster without any join address greets the
default ports of its own host, once and briefly, and says whom it found. It joins nobody: what is
not configured is not guessed.
"""

from __future__ import annotations

import asyncio

from whimbrel.config.keys import PORT_FIRST
from whimbrel.config.values import is_wildcard
from whimbrel.core.ids import Address
from whimbrel.core.model import MemberInfo
from whimbrel.runtime.links import Channel, LinkHost, open_channel
from whimbrel.wire import links as wire

NEIGHBOUR_PORTS = range(PORT_FIRST, PORT_FIRST + 10)
"""Ports that members take when they are given none, as far as they are looked at."""
GREETING_TIMEOUT_S = 0.5
"""Longest wait for an answer; a machine greets itself in a few milliseconds."""


async def namesakes(host: LinkHost, me: Address, cluster_name: str) -> list[MemberInfo]:
    """Members of clusters of that name that listen at the default ports of our own host.

    Args:
        host: Services of the node.
        me: Where we listen.
        cluster_name: Ours.
    """
    place = me.host
    if is_wildcard(place):
        place = "::1" if ":" in place else "127.0.0.1"
    places = [Address(place, port) for port in NEIGHBOUR_PORTS if port != me.port]
    greetings = await asyncio.gather(*(_greeting_of(host, address) for address in places))
    return [one.sender for one in greetings if one is not None and one.cluster_name == cluster_name]


async def _greeting_of(host: LinkHost, address: Address) -> wire.Greeting | None:
    """What the member at an address says of itself; None when there is no member."""
    channel = Channel(host, wire.CONTROL_CHANNEL, lambda: None)
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            return await open_channel(host, address, channel)
    except (OSError, TimeoutError):
        return None
    finally:
        channel.abort()
