package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.WriterDoor;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.io.CompressionCodec;

/** DistributedLog's asynchronous writers, by number. */
final class StreamWriters {
    private static final long ROLLED_WITHIN_MS = 30_000;

    /** A writer, and the stream that it was opened on. */
    private record Writer(DistributedLogManager log, AsyncLogWriter writer) {
    }

    private final Namespaces namespaces;
    private final Map<Long, Writer> open = new ConcurrentHashMap<>();
    private final Map<Long, BackgroundStreamWriter> background = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    StreamWriters(Namespaces namespaces) {
        this.namespaces = namespaces;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("stream_writer.open", this::open);
        commands.put("stream_writer.write", this::write);
        commands.put("stream_writer.write_set", this::writeSet);
        commands.put("stream_writer.write_control", arguments -> Namespaces.numbers(Namespaces.await(
                WriterDoor.writeControl(writer(arguments), arguments.get("txid").asLong()))));
        commands.put("stream_writer.commit", arguments -> Namespaces.await(WriterDoor.commit(writer(arguments))));
        commands.put("stream_writer.roll", arguments -> {
            WriterDoor.roll(writer(arguments), arguments.get("txid").asLong(), ROLLED_WITHIN_MS);
            return null;
        });
        commands.put("stream_writer.truncate", arguments ->
                Namespaces.await(writer(arguments).truncate(Namespaces.dlsn(arguments.get("dlsn")))));
        commands.put("stream_writer.last_txid", arguments -> writer(arguments).getLastTxId());
        commands.put("stream_writer.end_stream", arguments -> Namespaces.await(writer(arguments).markEndOfStream()));
        commands.put("stream_writer.close", arguments -> let(arguments, writer(arguments).asyncClose()));
        commands.put("stream_writer.abort", arguments -> let(arguments, writer(arguments).asyncAbort()));
        commands.put("stream_writer.start", arguments -> {
            background.put(number(arguments), new BackgroundStreamWriter(writer(arguments), Payloads.of(arguments),
                    arguments.get("first_txid").asLong(), arguments.get("inflight_max").asInt(),
                    arguments.get("pause_us").asLong()));
            return null;
        });
        commands.put("stream_writer.progress", arguments -> background.get(number(arguments)).progress());
        commands.put("stream_writer.stop", arguments ->
                background.get(number(arguments)).stop(arguments.get("within_ms").asLong()));
    }

    private static long number(JsonNode arguments) {
        return arguments.get("writer").asLong();
    }

    private AsyncLogWriter writer(JsonNode arguments) {
        return open.get(number(arguments)).writer;
    }

    private long open(JsonNode arguments) throws Exception {
        DistributedLogManager log = namespaces.log(arguments);
        try {
            long number = numbers.incrementAndGet();
            open.put(number, new Writer(log, Namespaces.await(log.openAsyncLogWriter())));
            return number;
        } catch (Exception error) {
            log.close();
            throw error;
        }
    }

    /** Let go of a writer, in the way that {@code ended} does. */
    private Object let(JsonNode arguments, CompletableFuture<Void> ended) throws Exception {
        Namespaces.await(ended);
        open.remove(number(arguments)).log.close();
        return null;
    }

    /** Write many records, one by one or in bulk. Where they are, once all are acknowledged. */
    private List<List<Long>> write(JsonNode arguments) throws Exception {
        List<LogRecord> records = records(arguments);
        List<CompletableFuture<DLSN>> written = new ArrayList<>();
        if (arguments.get("bulk").asBoolean()) {
            written = Namespaces.await(writer(arguments).writeBulk(records));
        } else {
            for (LogRecord record : records) {
                written.add(writer(arguments).write(record));
            }
        }
        if (arguments.get("commit").asBoolean()) {
            Namespaces.await(WriterDoor.commit(writer(arguments)));
        }
        return places(written);
    }

    /** Records as the command names them, or payloads with their numbers as txids. */
    static List<LogRecord> records(JsonNode arguments) throws Exception {
        List<LogRecord> records = new ArrayList<>();
        if (arguments.has("records")) {
            for (JsonNode record : arguments.get("records")) {
                records.add(new LogRecord(record.get(0).asLong(), record.get(1).binaryValue()));
            }
            return records;
        }
        Payloads payloads = Payloads.of(arguments);
        long first = arguments.get("first_txid").asLong();
        for (long txid = first; txid < first + arguments.get("count").asLong(); txid++) {
            records.add(new LogRecord(txid, payloads.get(txid)));
        }
        return records;
    }

    /** Write several payloads as one record. Where the set is, and where each member thinks that it is. */
    private Map<String, Object> writeSet(JsonNode arguments) throws Exception {
        CompressionCodec.Type codec = CompressionCodec.Type.valueOf(arguments.get("compression").asText());
        LogRecordSet.Writer set = LogRecordSet.newWriter(1024, codec);
        List<CompletableFuture<DLSN>> members = new ArrayList<>();
        for (JsonNode payload : arguments.get("payloads")) {
            CompletableFuture<DLSN> member = new CompletableFuture<>();
            members.add(member);
            set.writeRecord(ByteBuffer.wrap(payload.binaryValue()), member);
        }
        LogRecord record = new LogRecord(arguments.get("txid").asLong(), set.getBuffer());
        record.setRecordSet();
        DLSN place = Namespaces.await(writer(arguments).write(record));
        set.completeTransmit(place.getLogSegmentSequenceNo(), place.getEntryId(), place.getSlotId());
        return Map.of("set", Namespaces.numbers(place), "members", places(members));
    }

    private static List<List<Long>> places(List<CompletableFuture<DLSN>> written) throws Exception {
        List<List<Long>> places = new ArrayList<>();
        for (CompletableFuture<DLSN> place : written) {
            places.add(Namespaces.numbers(Namespaces.await(place)));
        }
        return places;
    }
}
