package quire.interop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.ReaderDoor;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.DistributedLogManager;

/** Follows a stream and collects its records until it is stopped, or until the reader fails. */
final class StreamTail {
    private static final int READ_AT_ONCE = 1_000;
    private static final long STUCK_NANOS = TimeUnit.SECONDS.toNanos(3);

    private final DistributedLogManager log;
    private final AsyncLogReader reader;
    private final List<Object> records = new ArrayList<>();
    private Throwable error;
    private Long stuckSinceNanos;

    StreamTail(DistributedLogManager log, AsyncLogReader reader) {
        this.log = log;
        this.reader = reader;
        readOn();
    }

    private void readOn() {
        reader.readBulk(READ_AT_ONCE).whenComplete((found, thrown) -> {
            note(found, thrown);
            if (thrown == null) {
                readOn();
            }
        });
    }

    private synchronized void note(List<LogRecordWithDLSN> found, Throwable thrown) {
        if (thrown != null) {
            error = thrown instanceof CompletionException ? thrown.getCause() : thrown;
            error.printStackTrace();
            return;
        }
        found.forEach(record -> records.add(StreamReaders.facts(record)));
    }

    /** The records from number {@code first} on, and what ended the reading. */
    synchronized Map<String, Object> found(int first) throws ReflectiveOperationException {
        noteIfStuck();
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("records", List.copyOf(records.subList(Math.min(first, records.size()), records.size())));
        facts.put("error", error == null ? null : error.getClass().getSimpleName());
        facts.put("message", error == null ? null : error.getMessage());
        return facts;
    }

    /** A wake-up is on its way for a moment. One that did not come at any look, for long, is lost. */
    private void noteIfStuck() throws ReflectiveOperationException {
        if (error != null || !LostWakeUpException.isWhy(reader)) {
            stuckSinceNanos = null;
        } else if (stuckSinceNanos == null) {
            stuckSinceNanos = System.nanoTime();
        } else if (System.nanoTime() - stuckSinceNanos > STUCK_NANOS) {
            error = new LostWakeUpException(records.size() + " records were read, and the next one is not taken");
        }
    }

    Long waitsIn() {
        return ReaderDoor.waitsIn(reader);
    }

    void stop() throws Exception {
        Namespaces.await(reader.asyncClose());
        log.close();
    }
}
