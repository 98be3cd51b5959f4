"""The runtime's links between members: which one is taken over and which is made anew."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from whimbrel.core.ids import Address, MemberId
from whimbrel.runtime.links import LinkHost, Links

PEER = MemberId("11111111-1111-1111-1111-111111111111")
ADDRESS = Address("127.0.0.1", 5701)


class _Host:
    """As much of a link's host as making and closing one needs."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        work.close()
        return self.loop.create_task(asyncio.sleep(0))


def test_a_link_that_broke_while_it_lingered_is_made_anew() -> None:
    """M5: a member that is wanted again within a second must be reached, also when its lingering
    link has ended meanwhile; a closed link that was taken over never connected again.
    """

    async def scenario() -> None:
        links = Links(cast("LinkHost", _Host()))
        links.want(PEER, ADDRESS)
        first = links._peers[PEER]
        links.unwant(PEER)
        links.want(PEER, ADDRESS)
        assert links._peers[PEER] is first  # it lingers well: taken over
        links.unwant(PEER)
        first.close()  # as it does itself when it breaks while nobody wants it
        links.want(PEER, ADDRESS)
        assert links._peers[PEER] is not first
        assert not links._peers[PEER].is_closed

    asyncio.run(scenario())
