package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.Unpooled;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;

/** What an application does with a ledger that it has open. */
final class HandleCommands {
    private static final long CHECKED_AT_ONCE = 500;

    private final LedgerClients clients;
    private final Map<Long, BackgroundWriter> writers = new ConcurrentHashMap<>();

    HandleCommands(LedgerClients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("handle.append", this::append);
        commands.put("handle.write", this::write);
        commands.put("handle.read", arguments -> taken(LedgerClients.await(arguments.get("unconfirmed").asBoolean()
                ? ledger(arguments).readUnconfirmedAsync(first(arguments), last(arguments))
                : ledger(arguments).readAsync(first(arguments), last(arguments)))));
        commands.put("handle.batch_read", this::batchRead);
        commands.put("handle.check", this::check);
        commands.put("handle.tail", this::tail);
        commands.put("handle.last_add_confirmed",
                arguments -> LedgerClients.await(ledger(arguments).readLastAddConfirmedAsync()));
        commands.put("handle.try_last_add_confirmed",
                arguments -> LedgerClients.await(ledger(arguments).tryReadLastAddConfirmedAsync()));
        commands.put("handle.explicit_lac", arguments -> ledger(arguments).readExplicitLastConfirmed());
        commands.put("handle.force", arguments -> LedgerClients.await(ledger(arguments).force()));
        commands.put("handle.close", arguments -> LedgerClients.await(ledger(arguments).closeAsync()));
        commands.put("handle.state", arguments -> state(ledger(arguments)));
        commands.put("writer.start", arguments -> {
            writers.put(arguments.get("handle").asLong(), new BackgroundWriter(ledger(arguments),
                    Payloads.of(arguments), arguments.get("inflight_max").asInt(), arguments.get("pause_us").asLong()));
            return null;
        });
        commands.put("writer.progress", arguments -> writer(arguments).progress());
        commands.put("writer.stop", arguments -> writer(arguments).stop(arguments.get("within_ms").asLong()));
    }

    private LedgerHandle ledger(JsonNode arguments) {
        return clients.ledger(arguments);
    }

    private BackgroundWriter writer(JsonNode arguments) {
        return writers.get(arguments.get("handle").asLong());
    }

    private static long first(JsonNode arguments) {
        return arguments.get("first").asLong();
    }

    private static long last(JsonNode arguments) {
        return arguments.get("last").asLong();
    }

    /** Append many entries without waiting between them; their ids, once all are acknowledged. */
    private List<Long> append(JsonNode arguments) throws Exception {
        LedgerHandle ledger = ledger(arguments);
        Payloads payloads = Payloads.of(arguments);
        List<CompletableFuture<Long>> added = new ArrayList<>();
        for (long number = first(arguments); number < first(arguments) + arguments.get("count").asLong(); number++) {
            added.add(ledger.appendAsync(Unpooled.wrappedBuffer(payloads.get(number))));
        }
        List<Long> ids = new ArrayList<>();
        for (CompletableFuture<Long> id : added) {
            ids.add(LedgerClients.await(id));
        }
        return ids;
    }

    /** Write entries under ids of our choice, in the given order, without waiting between them. */
    private Object write(JsonNode arguments) throws Exception {
        LedgerHandleAdv ledger = (LedgerHandleAdv) ledger(arguments);
        Payloads payloads = Payloads.of(arguments);
        List<CompletableFuture<Long>> added = new ArrayList<>();
        for (JsonNode entry : arguments.get("entries")) {
            added.add(ledger.writeAsync(entry.asLong(), Unpooled.wrappedBuffer(payloads.get(entry.asLong()))));
        }
        for (CompletableFuture<Long> id : added) {
            LedgerClients.await(id);
        }
        return null;
    }

    private List<Object> batchRead(JsonNode arguments) throws Exception {
        int countMax = arguments.get("count_max").asInt();
        long bytesMax = arguments.get("bytes_max").asLong();
        if (!arguments.get("unconfirmed").asBoolean()) {
            return taken(LedgerClients.await(
                    ledger(arguments).batchReadAsync(first(arguments), countMax, bytesMax)));
        }
        List<Object> found = new ArrayList<>(); // In the older of the two APIs: release 4.17 has it only there.
        ledger(arguments).batchReadUnconfirmedEntries(first(arguments), countMax, bytesMax).asIterator()
                .forEachRemaining(each -> found.add(List.of(each.getEntryId(), each.getLength(), each.getEntry())));
        return found;
    }

    /** Read entries and compare them with what was appended, here, where many cost little. How many were right. */
    private long check(JsonNode arguments) throws Exception {
        Payloads payloads = Payloads.of(arguments);
        for (long first = first(arguments); first <= last(arguments); first += CHECKED_AT_ONCE) {
            long last = Math.min(first + CHECKED_AT_ONCE - 1, last(arguments));
            try (LedgerEntries entries = LedgerClients.await(ledger(arguments).readAsync(first, last))) {
                for (long number = first; number <= last; number++) {
                    LedgerEntry entry = entries.getEntry(number);
                    if (entry.getEntryId() != number || !Arrays.equals(entry.getEntryBytes(), payloads.get(number))) {
                        throw new IllegalStateException("entry " + number + " is not what was appended");
                    }
                }
            }
        }
        return last(arguments) - first(arguments) + 1;
    }

    private Map<String, Object> tail(JsonNode arguments) throws Exception {
        try (LastConfirmedAndEntry answer = LedgerClients.await(ledger(arguments).readLastAddConfirmedAndEntryAsync(
                arguments.get("entry").asLong(), arguments.get("wait_ms").asLong(),
                arguments.get("parallel").asBoolean()))) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("lac", answer.getLastAddConfirmed());
            facts.put("entry", answer.hasEntry() ? entry(answer.getEntry()) : null);
            return facts;
        }
    }

    private static Map<String, Object> state(LedgerHandle ledger) {
        return Map.of(
                "lac", ledger.getLastAddConfirmed(),
                "last_pushed", ledger.getLastAddPushed(),
                "length", ledger.getLength(),
                "closed", ledger.isClosed(),
                "metadata", LedgerJson.write(ledger.getLedgerMetadata()));
    }

    private static List<Object> taken(LedgerEntries entries) {
        try (entries) {
            List<Object> found = new ArrayList<>();
            entries.forEach(entry -> found.add(entry(entry)));
            return found;
        }
    }

    private static List<Object> entry(LedgerEntry entry) {
        return List.of(entry.getEntryId(), entry.getLength(), entry.getEntryBytes());
    }
}
