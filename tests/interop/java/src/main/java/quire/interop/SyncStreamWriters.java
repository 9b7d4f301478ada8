package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.WriterDoor;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogWriter;

/** DistributedLog's synchronous writers, by number. They buffer, and tell nobody where a record went. */
final class SyncStreamWriters {
    private record Writer(DistributedLogManager log, LogWriter writer) {
    }

    private final Namespaces namespaces;
    private final Map<Long, Writer> open = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    SyncStreamWriters(Namespaces namespaces) {
        this.namespaces = namespaces;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("sync_writer.open", this::open);
        commands.put("sync_writer.write", this::write);
        commands.put("sync_writer.flush", arguments -> writer(arguments).flush());
        commands.put("sync_writer.commit", arguments -> writer(arguments).commit());
        commands.put("sync_writer.end_stream", arguments -> {
            writer(arguments).markEndOfStream();
            return null;
        });
        commands.put("sync_writer.close", arguments -> {
            writer(arguments).close();
            open.remove(number(arguments)).log.close();
            return null;
        });
        commands.put("sync_writer.abort", arguments -> {
            writer(arguments).abort();
            open.remove(number(arguments)).log.close();
            return null;
        });
    }

    private static long number(JsonNode arguments) {
        return arguments.get("writer").asLong();
    }

    private LogWriter writer(JsonNode arguments) {
        return open.get(number(arguments)).writer;
    }

    private long open(JsonNode arguments) throws Exception {
        DistributedLogManager log = namespaces.log(arguments);
        try {
            long number = numbers.incrementAndGet();
            open.put(number, new Writer(log, log.openLogWriter()));
            return number;
        } catch (Exception error) {
            log.close();
            throw error;
        }
    }

    /** Write records; if asked to, the first of them begins a new segment. */
    private Object write(JsonNode arguments) throws Exception {
        List<LogRecord> records = StreamWriters.records(arguments);
        if (arguments.get("roll").asBoolean()) {
            WriterDoor.rollAndWrite(writer(arguments), records.remove(0));
        }
        for (LogRecord record : records) {
            writer(arguments).write(record);
        }
        return null;
    }
}
