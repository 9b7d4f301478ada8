package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.subscription.SubscriptionsStore;

/** What DistributedLog says of a stream, and what it does to a stream as a whole. */
final class StreamCommands {
    /** What one word does with a stream, which is closed afterwards. */
    private interface OnLog {
        Object run(DistributedLogManager log, JsonNode arguments) throws Exception;
    }

    private final Namespaces namespaces;

    StreamCommands(Namespaces namespaces) {
        this.namespaces = namespaces;
    }

    void addTo(Map<String, Peer.Command> commands) {
        put(commands, "stream.segments", (log, arguments) -> segments(log));
        put(commands, "stream.first_dlsn", (log, arguments) ->
                Namespaces.numbers(Namespaces.await(log.getFirstDLSNAsync())));
        put(commands, "stream.last_dlsn", (log, arguments) -> Namespaces.numbers(log.getLastDLSN()));
        put(commands, "stream.first_txid", (log, arguments) -> log.getFirstTxId());
        put(commands, "stream.last_txid", (log, arguments) -> log.getLastTxId());
        put(commands, "stream.find", (log, arguments) ->
                Namespaces.numbers(Namespaces.await(log.getDLSNNotLessThanTxId(arguments.get("txid").asLong()))));
        put(commands, "stream.count", (log, arguments) ->
                Namespaces.await(log.getLogRecordCountAsync(Namespaces.dlsn(arguments.get("from")))));
        put(commands, "stream.has_end", (log, arguments) -> log.isEndOfStreamMarked());
        put(commands, "stream.recover", (log, arguments) -> {
            log.recover();
            return null;
        });
        put(commands, "stream.purge", (log, arguments) -> {
            log.purgeLogsOlderThan(arguments.get("min_txid").asLong());
            return null;
        });
        put(commands, "stream.subscriptions", (log, arguments) -> subscriptions(log.getSubscriptionsStore()));
        put(commands, "stream.subscribe", (log, arguments) ->
                Namespaces.await(log.getSubscriptionsStore().advanceCommitPosition(
                        arguments.get("subscriber").asText(), Namespaces.dlsn(arguments.get("dlsn")))));
        put(commands, "stream.unsubscribe", (log, arguments) -> Namespaces.await(
                log.getSubscriptionsStore().deleteSubscriber(arguments.get("subscriber").asText())));
    }

    private void put(Map<String, Peer.Command> commands, String word, OnLog action) {
        commands.put(word, arguments -> {
            try (DistributedLogManager log = namespaces.log(arguments)) {
                return action.run(log, arguments);
            }
        });
    }

    private static List<Object> segments(DistributedLogManager log) throws Exception {
        List<Object> found = new ArrayList<>();
        for (LogSegmentMetadata segment : log.getLogSegments()) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("name", segment.getZNodeName());
            facts.put("version", segment.getVersion());
            facts.put("lssn", segment.getLogSegmentSequenceNumber());
            facts.put("ledger_id", segment.getLogSegmentId());
            facts.put("first_txid", segment.getFirstTxId());
            facts.put("last_txid", segment.getLastTxId());
            facts.put("record_count", segment.getRecordCount());
            facts.put("last_dlsn", Namespaces.numbers(segment.getLastDLSN()));
            facts.put("min_active", Namespaces.numbers(segment.getMinActiveDLSN()));
            facts.put("truncation", segment.getTruncationStatus().name());
            facts.put("in_progress", segment.isInProgress());
            facts.put("completed_at_ms", segment.getCompletionTime());
            facts.put("start_sequence_id", segment.getStartSequenceId());
            facts.put("region", segment.getRegionId());
            found.add(facts);
        }
        return found;
    }

    private static Map<String, Object> subscriptions(SubscriptionsStore store) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        for (Map.Entry<String, DLSN> position : Namespaces.await(store.getLastCommitPositions()).entrySet()) {
            found.put(position.getKey(), Namespaces.numbers(position.getValue()));
        }
        return found;
    }
}
