"""The cluster state over the command line and HTTP, with real members."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.process.test_testing_cluster import QUICK, cli

import whimbrel
from whimbrel.testing import LocalCluster


def post(cluster: LocalCluster, content: object) -> tuple[int, Any]:
    host, _, port = cluster.admin_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/api/v1/state", json.dumps(content), headers)
    reply = connection.getresponse()
    found = json.loads(reply.read())
    connection.close()
    return reply.status, found


def test_the_state_by_command_line_and_http() -> None:
    """GCM-11, GCM-12: read and set with the command line and HTTP, every member in the new state
    when it returns; refusals have the same words both ways.
    """
    settings = {**QUICK, "membership.heartbeat_timeout_s": 60, "membership.call_timeout_s": 0.5}
    with whimbrel.local_cluster(members=2, settings=settings) as cluster:
        cluster.wait_until_safe()
        client = cluster.client().get_map("kept").blocking()
        client.put("k", "v")
        assert cli(cluster, "state", "get").stdout == "ACTIVE\n"
        for state in ("NO_MIGRATION", "FROZEN", "PASSIVE"):
            done = cli(cluster, "state", "set", state, "--json")
            assert (done.returncode, json.loads(done.stdout)["state"]) == (0, state)
            assert {cluster.get("/api/v1/cluster", via=n)["state"] for n in (0, 1)} == {state}
        assert client.get("k") == "v"
        wrong = cli(cluster, "state", "set", "FROZEM")
        assert wrong.returncode == 2 and "FROZEN" in wrong.stderr
        status, found = post(cluster, {"state": "IN_TRANSITION"})
        assert status == 400 and "IN_TRANSITION" in found["error"]
        cluster.pause(1)
        status, found = post(cluster, {"state": "ACTIVE"})
        refused = cli(cluster, "state", "set", "ACTIVE")
        cluster.resume(1)
        assert status == 409 and refused.returncode == 1
        assert found["error"] == refused.stderr.strip()
        assert post(cluster, {"state": "ACTIVE"})[0] == 200
        cluster.wait_until_safe()
        kinds = [event["kind"] for event in cluster.get("/api/v1/events")]
        assert {"cluster_state_changed", "state_change_refused"} <= set(kinds)
