"""Names of the client protocol's messages in the services whose shapes we do not know.

A request of one of these is refused by name, so that its sender learns what is missing. The numbers
and names are those of the Hazelcast Open Binary Client Protocol 2.10.
"""

from __future__ import annotations

_SERVICES: tuple[tuple[int, str, str], ...] = (
    (0x04, "Topic", "publish addMessageListener removeMessageListener publishAll"),
    (
        0x05,
        "List",
        "size contains containsAll add remove addAll compareAndRemoveAll compareAndRetainAll "
        "clear getAll addListener removeListener isEmpty addAllWithIndex get set addWithIndex "
        "removeWithIndex lastIndexOf indexOf sub iterator listIterator",
    ),
    (
        0x06,
        "Set",
        "size contains containsAll add remove addAll compareAndRemoveAll compareAndRetainAll "
        "clear getAll addListener removeListener isEmpty",
    ),
    (0x07, "FencedLock", "lock tryLock unlock getLockOwnership"),
    (
        0x08,
        "ExecutorService",
        "shutdown isShutdown cancelOnPartition cancelOnMember submitToPartition submitToMember",
    ),
    (0x09, "AtomicLong", "apply alter addAndGet compareAndSet get getAndAdd getAndSet"),
    (0x0A, "AtomicRef", "apply compareAndSet contains get set"),
    (0x0B, "CountDownLatch", "trySetCount await countDown getCount getRound"),
    (0x0C, "Semaphore", "init acquire release drain change availablePermits getSemaphoreType"),
    (
        0x0D,
        "ReplicatedMap",
        "put size isEmpty containsKey containsValue get remove putAll clear "
        "addEntryListenerToKeyWithPredicate addEntryListenerWithPredicate addEntryListenerToKey "
        "addEntryListener removeEntryListener keySet values entrySet addNearCacheEntryListener "
        "putAllWithMetadata fetchEntryViews endEntryViewIteration",
    ),
    (
        0x0E,
        "TransactionalMap",
        "containsKey get getForUpdate size isEmpty put set putIfAbsent replace replaceIfSame "
        "remove delete removeIfSame keySet keySetWithPredicate values valuesWithPredicate "
        "containsValue",
    ),
    (0x0F, "TransactionalMultiMap", "put get remove removeEntry valueCount size"),
    (0x10, "TransactionalSet", "add remove size"),
    (0x11, "TransactionalList", "add remove size"),
    (0x12, "TransactionalQueue", "offer take poll peek size"),
    (
        0x13,
        "Cache",
        "addEntryListener clear removeAllKeys removeAll containsKey createConfig destroy "
        "entryProcessor getAll getAndRemove getAndReplace getConfig get iterate "
        "listenerRegistration loadAll managementConfig putIfAbsent put removeEntryListener "
        "removeInvalidationListener remove replace size addPartitionLostListener "
        "removePartitionLostListener putAll iterateEntries addNearCacheInvalidationListener "
        "fetchNearCacheInvalidationMetadata eventJournalSubscribe eventJournalRead "
        "setExpiryPolicy",
    ),
    (
        0x14,
        "XATransaction",
        "clearRemote collectTransactions finalize commit create prepare rollback",
    ),
    (0x15, "Transaction", "commit create rollback"),
    (
        0x16,
        "ContinuousQuery",
        "publisherCreateWithValue publisherCreate madePublishable addListener setReadCursor "
        "destroyCache",
    ),
    (
        0x18,
        "DurableExecutor",
        "shutdown isShutdown submitToPartition retrieveResult disposeResult "
        "retrieveAndDisposeResult",
    ),
    (0x19, "CardinalityEstimator", "add estimate"),
    (
        0x1A,
        "ScheduledExecutor",
        "shutdown submitToPartition submitToMember getAllScheduledFutures getStatsFromPartition "
        "getStatsFromMember getDelayFromPartition getDelayFromMember cancelFromPartition "
        "cancelFromMember isCancelledFromPartition isCancelledFromMember isDoneFromPartition "
        "isDoneFromMember getResultFromPartition getResultFromMember disposeFromPartition "
        "disposeFromMember",
    ),
    (
        0x1B,
        "DynamicConfig",
        "addMultiMapConfig addRingbufferConfig addCardinalityEstimatorConfig addListConfig "
        "addSetConfig addReplicatedMapConfig addTopicConfig addExecutorConfig "
        "addDurableExecutorConfig addScheduledExecutorConfig addQueueConfig addMapConfig "
        "addReliableTopicConfig addCacheConfig addFlakeIdGeneratorConfig addPNCounterConfig "
        "addDataConnectionConfig addWanReplicationConfig addUserCodeNamespaceConfig "
        "addVectorCollectionConfig",
    ),
    (0x1D, "PNCounter", "get add getConfiguredReplicaCount"),
    (0x1E, "CPGroup", "createCPGroup destroyCPObject"),
    (0x1F, "CPSession", "createSession closeSession heartbeatSession generateThreadId"),
    (
        0x20,
        "MC",
        "readMetrics changeClusterState getMapConfig updateMapConfig getMemberConfig runGc "
        "getThreadDump shutdownMember promoteLiteMember getSystemProperties getTimedMemberState "
        "matchMCConfig applyMCConfig getClusterMetadata shutdownCluster changeClusterVersion "
        "runScript runConsoleCommand changeWanReplicationState clearWanQueues "
        "addWanBatchPublisherConfig wanSyncMap checkWanConsistency pollMCEvents getCPMembers "
        "promoteToCPMember removeCPMember resetCPSubsystem triggerPartialStart triggerForceStart "
        "triggerHotRestartBackup interruptHotRestartBackup resetQueueAgeStatistics reloadConfig "
        "updateConfig forceCloseCPSession demoteDataMember getConfigFileContent "
        "setDiagnosticsConfig getDiagnosticsConfig",
    ),
    (0x21, "Sql", "execute_reserved fetch_reserved close execute fetch mappingDdl"),
    (
        0x22,
        "CPSubsystem",
        "addMembershipListener removeMembershipListener addGroupAvailabilityListener "
        "removeGroupAvailabilityListener getCPGroupIds getCPObjectInfos",
    ),
    (0x23, "CPMap", "get put set remove delete compareAndSet putIfAbsent"),
    (
        0x24,
        "VectorCollection",
        "put putIfAbsent putAll get remove set delete searchNearVector optimize clear size",
    ),
    (0xFD, "Experimental", "pipelineSubmit"),
    (
        0xFE,
        "Jet",
        "submitJob terminateJob getJobStatus getJobIds joinSubmittedJob 7=getJobSubmissionTime "
        "getJobConfig resumeJob exportSnapshot getJobSummaryList existsDistributedObject "
        "getJobMetrics getJobSuspensionCause getJobAndSqlSummaryList isJobUserCancelled "
        "uploadJobMetaData uploadJobMultipart addJobStatusListener removeJobStatusListener "
        "updateJobConfig",
    ),
)
"""(service number, service name, method names); methods count from 1 unless a number is given."""


def _names() -> dict[int, str]:
    table: dict[int, str] = {}
    for service, service_name, methods in _SERVICES:
        number = 0
        for word in methods.split():
            given, _, rest = word.rpartition("=")
            number = int(given) if given else number + 1
            table[service << 16 | number << 8] = f"{service_name}.{rest}"
    return table


NAMES: dict[int, str] = _names()
"""Request type to name, for example ``0x020100`` to ``MultiMap.put``."""
