package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateAdvBuilder;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** BookKeeper's ledger clients, each in one wire version, and the ledgers that they have open. */
final class LedgerClients {
    private static final long ANSWER_WITHIN_S = 50; // BookKeeper's own futures can stay open for ever.

    private final Map<Long, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Map<Long, LedgerHandle> ledgers = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("client.open", arguments -> {
            long number = numbers.incrementAndGet();
            clients.put(number, connect(arguments));
            return number;
        });
        commands.put("client.close", arguments -> {
            // Ledgers stay as they are: to the others, their writer has died. Nobody waits for the end, since Java's
            // client takes a second over it.
            BookKeeper client = clients.remove(arguments.get("client").asLong());
            new Thread(() -> close(client), "closing").start();
            return null;
        });
        commands.put("client.create", this::create);
        commands.put("client.open_ledger", this::open);
        commands.put("client.delete", arguments -> await(client(arguments).newDeleteLedgerOp()
                .withLedgerId(arguments.get("ledger").asLong()).execute()));
    }

    BookKeeper client(JsonNode arguments) {
        return clients.get(arguments.get("client").asLong());
    }

    LedgerHandle ledger(JsonNode arguments) {
        return ledgers.get(arguments.get("handle").asLong());
    }

    static <T> T await(CompletableFuture<T> answer) throws Exception {
        return answer.get(ANSWER_WITHIN_S, TimeUnit.SECONDS);
    }

    private static BookKeeper connect(JsonNode arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments.get("uri").asText());
        configuration.setUseV2WireProtocol(arguments.get("wire").asInt() == 2);
        configuration.setThrottleValue(0); // By default it holds back what a test wants to have under way at once.
        configuration.setNumIOThreads(1).setNumWorkerThreads(1);
        for (Map.Entry<String, JsonNode> setting : arguments.get("settings").properties()) {
            configuration.setProperty(setting.getKey(), setting.getValue().asText());
        }
        return new BookKeeper(configuration);
    }

    private static void close(BookKeeper client) {
        try {
            client.close();
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    private Map<String, Object> create(JsonNode arguments) throws Exception {
        JsonNode quorum = arguments.get("quorum");
        CreateBuilder builder = client(arguments).newCreateLedgerOp()
                .withEnsembleSize(quorum.get(0).asInt())
                .withWriteQuorumSize(quorum.get(1).asInt())
                .withAckQuorumSize(quorum.get(2).asInt())
                .withDigestType(digest(arguments))
                .withPassword(arguments.get("password").binaryValue())
                .withCustomMetadata(custom(arguments));
        if (arguments.get("deferred").asBoolean()) {
            builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        if (!arguments.get("advanced").asBoolean()) {
            return remember((LedgerHandle) await(builder.execute()));
        }
        CreateAdvBuilder advanced = builder.makeAdv();
        if (!arguments.get("ledger").isNull()) {
            advanced.withLedgerId(arguments.get("ledger").asLong());
        }
        return remember((LedgerHandle) await(advanced.execute()));
    }

    private Map<String, Object> open(JsonNode arguments) throws Exception {
        return remember((LedgerHandle) await(client(arguments).newOpenLedgerOp()
                .withLedgerId(arguments.get("ledger").asLong())
                .withDigestType(digest(arguments))
                .withPassword(arguments.get("password").binaryValue())
                .withRecovery(arguments.get("recover").asBoolean())
                .execute()));
    }

    private Map<String, Object> remember(LedgerHandle ledger) {
        long number = numbers.incrementAndGet();
        ledgers.put(number, ledger);
        return Map.of("handle", number, "ledger", ledger.getId());
    }

    private static DigestType digest(JsonNode arguments) {
        return DigestType.valueOf(arguments.get("digest").asText());
    }

    private static Map<String, byte[]> custom(JsonNode arguments) throws IOException {
        Map<String, byte[]> custom = new LinkedHashMap<>();
        for (Map.Entry<String, JsonNode> entry : arguments.get("custom").properties()) {
            custom.put(entry.getKey(), entry.getValue().binaryValue());
        }
        return custom;
    }
}
