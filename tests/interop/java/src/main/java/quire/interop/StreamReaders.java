package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.exceptions.EndOfStreamException;
import org.apache.distributedlog.exceptions.LogEmptyException;

/** DistributedLog's readers: those that read what is there and end, and those that follow a stream, by number. */
final class StreamReaders {
    private static final int READ_AT_ONCE = 1_000;

    private final Namespaces namespaces;
    private final Map<Long, StreamTail> tails = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    StreamReaders(Namespaces namespaces) {
        this.namespaces = namespaces;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("stream.read", this::read);
        commands.put("stream.read_sync", this::readSync);
        commands.put("tail.start", arguments -> {
            DistributedLogManager log = namespaces.log(arguments);
            long number = numbers.incrementAndGet();
            try {
                tails.put(number, new StreamTail(log, opened(log, arguments)));
            } catch (Exception error) {
                log.close();
                throw error;
            }
            return number;
        });
        commands.put("tail.poll", arguments ->
                tails.get(arguments.get("tail").asLong()).found(arguments.get("first").asInt()));
        commands.put("tail.waits_in", arguments -> tails.get(arguments.get("tail").asLong()).waitsIn());
        commands.put("tail.stop", arguments -> {
            tails.remove(arguments.get("tail").asLong()).stop();
            return null;
        });
    }

    static Object facts(LogRecordWithDLSN record) {
        return List.of(Namespaces.numbers(record.getDlsn()), record.getTransactionId(), record.getPayload(),
                record.getPositionWithinLogSegment(), record.getSequenceId());
    }

    /** A reader from where the command says: a DLSN, a txid, or what a subscriber has committed last. */
    private static AsyncLogReader opened(DistributedLogManager log, JsonNode arguments) throws Exception {
        JsonNode from = arguments.get("from");
        if (!arguments.path("locked").asBoolean()) {
            return Namespaces.await(from.isArray()
                    ? log.openAsyncLogReader(Namespaces.dlsn(from))
                    : log.openAsyncLogReader(from.asLong()));
        }
        JsonNode subscriber = arguments.get("subscriber");
        if (subscriber.isNull()) {
            return Namespaces.await(log.getAsyncLogReaderWithLock(Namespaces.dlsn(from)));
        }
        return Namespaces.await(from.isNull()
                ? log.getAsyncLogReaderWithLock(subscriber.asText())
                : log.getAsyncLogReaderWithLock(Namespaces.dlsn(from), subscriber.asText()));
    }

    /** Read up to the record that is the last one when the reading begins, or to the end of a stream that has one. */
    private Map<String, Object> read(JsonNode arguments) throws Exception {
        try (DistributedLogManager log = namespaces.log(arguments)) {
            List<Object> found = new ArrayList<>();
            LogRecordWithDLSN last;
            boolean hasEnd;
            try {
                hasEnd = log.isEndOfStreamMarked();
                last = log.getLastLogRecord();
            } catch (LogEmptyException empty) {
                return answer(found, false);
            }
            if (!hasEnd && isBehind(arguments.get("from"), last)) {
                return answer(found, false);
            }
            AsyncLogReader reader = opened(log, arguments);
            try {
                return answer(found, read(reader, arguments, hasEnd ? null : last.getDlsn(), found));
            } finally {
                Namespaces.await(reader.asyncClose());
            }
        }
    }

    private static boolean isBehind(JsonNode from, LogRecordWithDLSN last) {
        return from.isArray()
                ? Namespaces.dlsn(from).compareTo(last.getDlsn()) > 0
                : from.asLong() > last.getTransactionId();
    }

    /** Whether the reader came to the end of the stream. */
    private static boolean read(AsyncLogReader reader, JsonNode arguments, DLSN last, List<Object> found)
            throws Exception {
        int countMax = arguments.get("count_max").asInt();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(arguments.get("within_ms").asLong());
        while (found.size() < countMax) {
            List<LogRecordWithDLSN> records;
            try {
                records = reader.readBulk(Math.min(READ_AT_ONCE, countMax - found.size()))
                        .get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            } catch (ExecutionException error) {
                if (error.getCause() instanceof EndOfStreamException) {
                    return true;
                }
                throw error;
            } catch (TimeoutException error) {
                String message = found.size() + " records were read, but none at " + last;
                throw LostWakeUpException.isWhy(reader)
                        ? new LostWakeUpException(message) : new TimeoutException(message);
            }
            for (LogRecordWithDLSN record : records) {
                found.add(facts(record));
                if (last != null && record.getDlsn().compareTo(last) >= 0) {
                    return false;
                }
            }
        }
        return false;
    }

    /** Read until a synchronous reader finds that it has caught up. */
    private Map<String, Object> readSync(JsonNode arguments) throws Exception {
        JsonNode from = arguments.get("from");
        List<Object> found = new ArrayList<>();
        try (DistributedLogManager log = namespaces.log(arguments);
                LogReader reader = from.isArray()
                        ? log.openLogReader(Namespaces.dlsn(from)) : log.openLogReader(from.asLong())) {
            while (found.size() < arguments.get("count_max").asInt()) {
                LogRecordWithDLSN record;
                try {
                    record = reader.readNext(false);
                    if (record == null) {
                        record = reader.readNext(true); // Only the next call tells of an error that ended this one.
                    }
                } catch (EndOfStreamException end) {
                    return answer(found, true);
                }
                if (record == null) {
                    break;
                }
                found.add(facts(record));
            }
        }
        return answer(found, false);
    }

    private static Map<String, Object> answer(List<Object> records, boolean ended) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("records", records);
        answer.put("ended", ended);
        return answer;
    }
}
