package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.UpdateLoop;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.LedgerMetadata.State;
import org.apache.bookkeeper.meta.LedgerManager.LedgerRangeIterator;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Versioned;

/** Ledger metadata and ledger ids, through BookKeeper's ledger manager, serializer, update loop and id generator. */
final class LedgerCommands {
    private static final LedgerMetadataSerDe FORMAT = new LedgerMetadataSerDe();

    private final Clusters clusters;
    private final Map<String, BlockingQueue<Map<String, Object>>> watched = new ConcurrentHashMap<>();

    LedgerCommands(Clusters clusters) {
        this.clusters = clusters;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("ledger.create", arguments -> {
            long ledger = ledger(arguments);
            return stored(cluster(arguments).ledgers
                    .createLedgerMetadata(ledger, LedgerJson.read(ledger, arguments.get("metadata"))).get());
        });
        commands.put("ledger.read", arguments -> stored(read(arguments)));
        commands.put("ledger.write", arguments -> {
            long ledger = ledger(arguments);
            return stored(cluster(arguments).ledgers.writeLedgerMetadata(ledger,
                    LedgerJson.read(ledger, arguments.get("metadata")), version(arguments)).get());
        });
        commands.put("ledger.remove", arguments ->
                cluster(arguments).ledgers.removeLedgerMetadata(ledger(arguments), version(arguments)).get());
        commands.put("ledger.list", this::list);
        commands.put("ledger.encode", arguments ->
                FORMAT.serialize(LedgerJson.read(ledger(arguments), arguments.get("metadata"))));
        commands.put("ledger.decode", arguments -> LedgerJson.write(FORMAT.parseConfig(
                arguments.get("bytes").binaryValue(), ledger(arguments), Optional.empty())));
        commands.put("ledger.stamp", this::stamp);
        commands.put("ledger.add_fragments", this::addFragments);
        commands.put("ledger.start_recovery", arguments -> stored(update(arguments, read(arguments),
                metadata -> metadata.getState() == State.OPEN,
                metadata -> LedgerMetadataBuilder.from(metadata).withInRecoveryState().build())));
        commands.put("ledger.seal", arguments -> stored(update(arguments, read(arguments),
                metadata -> metadata.getState() != State.CLOSED,
                metadata -> LedgerMetadataBuilder.from(metadata).withClosedState()
                        .withLastEntryId(arguments.get("last_entry_id").asLong())
                        .withLength(arguments.get("length").asLong()).build())));
        commands.put("ledger.watch", this::watch);
        commands.put("ledger.await_change", this::awaitChange);
        commands.put("ids.next", this::nextIds);
    }

    private Cluster cluster(JsonNode arguments) {
        return clusters.of(arguments);
    }

    private static long ledger(JsonNode arguments) {
        return arguments.get("ledger").asLong();
    }

    private static LongVersion version(JsonNode arguments) {
        return new LongVersion(arguments.get("version").asLong());
    }

    private Versioned<LedgerMetadata> read(JsonNode arguments) throws Exception {
        return cluster(arguments).ledgers.readLedgerMetadata(ledger(arguments)).get();
    }

    private static Map<String, Object> stored(Versioned<LedgerMetadata> versioned) {
        return Map.of(
                "version", ((LongVersion) versioned.getVersion()).getLongVersion(),
                "metadata", LedgerJson.write(versioned.getValue()));
    }

    /** Every ledger id, in the order of BookKeeper's own listing: the one that garbage collection walks. */
    private List<Long> list(JsonNode arguments) throws Exception {
        List<Long> found = new ArrayList<>();
        LedgerRangeIterator ranges = cluster(arguments).ledgers.getLedgerRanges(0);
        while (ranges.hasNext()) {
            found.addAll(ranges.next().getLedgers());
        }
        return found;
    }

    // --- Changes, each through BookKeeper's update loop

    private Versioned<LedgerMetadata> update(JsonNode arguments, Versioned<LedgerMetadata> known,
            Predicate<LedgerMetadata> needed, UnaryOperator<LedgerMetadata> change) throws Exception {
        return UpdateLoop.run(cluster(arguments).ledgers, ledger(arguments), known, needed, change).get();
    }

    /** Add custom metadata, one key after the other, each from what the change before it left. */
    private Map<String, Object> stamp(JsonNode arguments) throws Exception {
        Versioned<LedgerMetadata> known = read(arguments);
        for (JsonNode key : arguments.get("keys")) {
            known = update(arguments, known,
                    metadata -> !metadata.getCustomMetadata().containsKey(key.asText()),
                    metadata -> {
                        Map<String, byte[]> custom = new LinkedHashMap<>(metadata.getCustomMetadata());
                        custom.put(key.asText(), new byte[] {1});
                        return LedgerMetadataBuilder.from(metadata).withCustomMetadata(custom).build();
                    });
        }
        return stored(known);
    }

    /** Append a fragment for each bookie, which then stands first in it. */
    private Map<String, Object> addFragments(JsonNode arguments) throws Exception {
        Versioned<LedgerMetadata> known = read(arguments);
        for (JsonNode name : arguments.get("bookies")) {
            BookieId bookie = BookieId.parse(name.asText());
            known = update(arguments, known,
                    metadata -> metadata.getAllEnsembles().values().stream().noneMatch(list -> list.contains(bookie)),
                    metadata -> {
                        Map.Entry<Long, ? extends List<BookieId>> last = metadata.getAllEnsembles().lastEntry();
                        List<BookieId> ensemble = new ArrayList<>(last.getValue());
                        ensemble.set(0, bookie);
                        return LedgerMetadataBuilder.from(metadata)
                                .newEnsembleEntry(last.getKey() + 1, ensemble).build();
                    });
        }
        return stored(known);
    }

    // --- Watching

    private Object watch(JsonNode arguments) {
        BlockingQueue<Map<String, Object>> told = new LinkedBlockingQueue<>();
        watched.put(watchKey(arguments), told);
        cluster(arguments).ledgers.registerLedgerMetadataListener(ledger(arguments), (ledger, metadata) -> {
            told.add(metadata == null ? new HashMap<>() : stored(metadata));
        });
        return null;
    }

    /** The next thing that the listener was told; an empty map means that the ledger is gone. */
    private Map<String, Object> awaitChange(JsonNode arguments) throws Exception {
        Map<String, Object> told =
                watched.get(watchKey(arguments)).poll(arguments.get("within_ms").asLong(), TimeUnit.MILLISECONDS);
        if (told == null) {
            throw new TimeoutException("the listener was told nothing");
        }
        return told;
    }

    private static String watchKey(JsonNode arguments) {
        return arguments.get("cluster") + "/" + arguments.get("ledger");
    }

    // --- Ids

    private List<Long> nextIds(JsonNode arguments) throws Exception {
        List<Long> made = new ArrayList<>();
        for (int count = arguments.get("count").asInt(); count > 0; count--) {
            CompletableFuture<Long> next = new CompletableFuture<>();
            cluster(arguments).ids.generateLedgerId((code, id) -> {
                if (code == BKException.Code.OK) {
                    next.complete(id);
                } else {
                    next.completeExceptionally(BKException.create(code));
                }
            });
            made.add(next.get(30, TimeUnit.SECONDS));
        }
        return made;
    }
}
