"""What the protocol knows and this cluster does not have: words for refusals, logs and README.

Every request that nobody handles belongs to one of these rows, so that whoever sends it learns what
is missing and not only that something is. A test compares the rows with the protocol's table, with
the handlers, and with the list in the README.
"""

from __future__ import annotations

from whimbrel.core.context import Context
from whimbrel.errors import UnsupportedError

ABSENT: tuple[tuple[str, str], ...] = (
    (
        "queries and predicates",
        "Map.keySetWithPredicate Map.valuesWithPredicate Map.entriesWithPredicate "
        "Map.keySetWithPagingPredicate Map.valuesWithPagingPredicate "
        "Map.entriesWithPagingPredicate Map.fetchWithQuery Map.removeAll",
    ),
    (
        "listeners with a predicate",
        "Map.addEntryListenerWithPredicate Map.addEntryListenerToKeyWithPredicate",
    ),
    ("indexes", "Map.addIndex"),
    (
        "aggregations and projections",
        "Map.aggregate Map.aggregateWithPredicate Map.project Map.projectWithPredicate",
    ),
    ("SQL", "Sql"),
    (
        "near caches",
        "Map.addNearCacheInvalidationListener Map.fetchNearCacheInvalidationMetadata",
    ),
    (
        "locks of multimaps",
        "MultiMap.lock MultiMap.tryLock MultiMap.isLocked MultiMap.unlock MultiMap.forceUnlock",
    ),
    (
        "entry processors and interceptors",
        "Map.executeOnKey Map.submitToKey Map.executeOnAllKeys Map.executeWithPredicate "
        "Map.executeOnKeys Map.replaceAll Map.addInterceptor Map.removeInterceptor",
    ),
    ("map loaders", "Map.loadAll Map.loadGivenKeys"),
    ("event journals", "Map.eventJournalSubscribe Map.eventJournalRead"),
    ("transactions", "Transaction XATransaction TransactionalMap TransactionalMultiMap "
        "TransactionalSet TransactionalList TransactionalQueue"),
    ("replicated maps", "ReplicatedMap"),
    ("lists", "List"),
    ("sets", "Set"),
    ("topics and reliable topics", "Topic"),
    ("PN counters", "PNCounter"),
    ("cardinality estimators", "CardinalityEstimator"),
    ("executors", "ExecutorService DurableExecutor ScheduledExecutor"),
    (
        "the CP subsystem (atomic longs and references, fenced locks, latches, semaphores, "
        "CP maps)",
        "CPGroup CPSession CPSubsystem CPMap FencedLock AtomicLong AtomicRef CountDownLatch "
        "Semaphore Client.addCPGroupViewListener",
    ),
    ("JCache caches", "Cache"),
    ("continuous query caches", "ContinuousQuery"),
    ("vector collections", "VectorCollection"),
    ("pipelines (Jet)", "Jet Experimental"),
    ("WAN replication", "Map.putAllWithMetadata"),
    ("configuration while running", "DynamicConfig"),
    ("Management Center", "MC"),
    ("deployment of user code", "Client.deployClasses"),
    ("thread-per-core connections", "Client.tpcAuthentication"),
)  # fmt: skip
"""What is missing, and the requests (``Service.method``) or whole services that need it."""

_SERVICE_OF = {
    "replicatedMapService": "ReplicatedMap",
    "listService": "List",
    "setService": "Set",
    "topicService": "Topic",
    "reliableTopicService": "Topic",
    "PNCounterService": "PNCounter",
    "cardinalityEstimatorService": "CardinalityEstimator",
    "executorService": "ExecutorService",
    "durableExecutorService": "DurableExecutor",
    "scheduledExecutorService": "ScheduledExecutor",
    "cacheService": "Cache",
    "vector": "VectorCollection",
}
"""How proxies name a service, after the last colon, and how messages do."""

_FEATURE_OF = {word: feature for feature, words in ABSENT for word in words.split()}


def feature_of(request: str) -> str:
    """What is missing for a request, ``Service.method``; empty when that is not known."""
    service = request.partition(".")[0]
    return _FEATURE_OF.get(request) or _FEATURE_OF.get(service, "")


class Absences:
    """Refuses what is not there; each kind is noted once, for clients that swallow the reason."""

    def __init__(self, ctx: Context) -> None:
        """Begin with nothing noted."""
        self._ctx = ctx
        self._noted: dict[str, None] = {}

    def request(self, name: str) -> UnsupportedError:
        """The refusal of a request of the protocol, by its name."""
        return self._refusal(name, feature_of(name))

    def service(self, name: str) -> UnsupportedError:
        """The refusal of a structure of a service, named as clients name it."""
        service = _SERVICE_OF.get(name.rpartition(":")[2], "")
        feature = feature_of(service)
        if not feature:  # a stranger's word: not kept
            return UnsupportedError(f"the service {name!r} is not offered by this cluster")
        return self._refusal(f"the service {name!r}", feature)

    def _refusal(self, what: str, feature: str) -> UnsupportedError:
        missing = f"it has no {feature.removeprefix('the ')}" if feature else ""
        if what not in self._noted:
            self._noted[what] = None
            self._ctx.note("unsupported_request", "warning", request=what, missing=feature)
        tail = f": {missing}" if missing else ""
        return UnsupportedError(f"{what} is not offered by this cluster{tail}")
