package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.ZooKeeperClient;
import org.apache.distributedlog.ZooKeeperClientBuilder;
import org.apache.distributedlog.admin.DistributedLogAdmin;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;

/** DistributedLog's namespaces: bound by its own command line, and opened, each with settings of its own. */
final class Namespaces {
    private static final long ANSWER_WITHIN_S = 50; // DistributedLog's own futures can stay open for ever.
    private static final int SESSION_MS = 10_000;

    private final Map<Long, Namespace> open = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("namespace.admin", Namespaces::admin);
        commands.put("namespace.binding", Namespaces::binding);
        commands.put("namespace.open", arguments -> {
            long number = numbers.incrementAndGet();
            open.put(number, open(arguments));
            return number;
        });
        commands.put("namespace.close", arguments -> {
            // Nobody waits for the end: its threads take seconds over it.
            Namespace namespace = open.remove(arguments.get("namespace").asLong());
            new Thread(namespace::close, "closing").start();
            return null;
        });
        commands.put("namespace.create", arguments -> {
            of(arguments).createLog(stream(arguments));
            return null;
        });
        commands.put("namespace.delete", arguments -> {
            of(arguments).deleteLog(stream(arguments));
            return null;
        });
        commands.put("namespace.rename", arguments ->
                await(of(arguments).renameLog(stream(arguments), arguments.get("name").asText())));
        commands.put("namespace.exists", arguments -> of(arguments).logExists(stream(arguments)));
        commands.put("namespace.list", arguments -> {
            TreeSet<String> names = new TreeSet<>();
            of(arguments).getLogs().forEachRemaining(names::add);
            return names;
        });
    }

    Namespace of(JsonNode arguments) {
        Namespace namespace = open.get(arguments.get("namespace").asLong());
        if (namespace == null) {
            throw new IllegalStateException("namespace " + arguments.get("namespace") + " is not open");
        }
        return namespace;
    }

    /** The stream that a command is about. Whoever asks closes it, and reads nothing that another one has cached. */
    DistributedLogManager log(JsonNode arguments) throws Exception {
        return of(arguments).openLog(stream(arguments));
    }

    private static String stream(JsonNode arguments) {
        return arguments.get("stream").asText();
    }

    static <T> T await(CompletableFuture<T> answer) throws Exception {
        return answer.get(ANSWER_WITHIN_S, TimeUnit.SECONDS);
    }

    static DLSN dlsn(JsonNode numbers) {
        return new DLSN(numbers.get(0).asLong(), numbers.get(1).asLong(), numbers.get(2).asLong());
    }

    static List<Long> numbers(DLSN dlsn) {
        return List.of(dlsn.getLogSegmentSequenceNo(), dlsn.getEntryId(), dlsn.getSlotId());
    }

    /** What an operator types: {@code bind}, {@code unbind} and so on. Its exit code. */
    private static int admin(JsonNode arguments) throws Exception {
        BKDLConfig.clearCachedDLConfigs(); // A new process would know of none.
        List<String> words = new ArrayList<>();
        arguments.get("words").forEach(word -> words.add(word.asText()));
        return new DistributedLogAdmin().run(words.toArray(String[]::new));
    }

    /** The bytes of a namespace's node. */
    private static byte[] binding(JsonNode arguments) throws Exception {
        URI uri = URI.create(arguments.get("uri").asText());
        ZooKeeperClient client =
                ZooKeeperClientBuilder.newBuilder().uri(uri).zkAclId(null).sessionTimeoutMs(SESSION_MS).build();
        try {
            return client.get().getData(uri.getPath(), false, null);
        } finally {
            client.close();
        }
    }

    private static Namespace open(JsonNode arguments) throws Exception {
        DistributedLogConfiguration configuration = new DistributedLogConfiguration();
        for (Map.Entry<String, JsonNode> setting : arguments.get("settings").properties()) {
            configuration.setProperty(setting.getKey(), setting.getValue().asText());
        }
        BKDLConfig.clearCachedDLConfigs();
        NamespaceBuilder builder = NamespaceBuilder.newBuilder()
                .conf(configuration)
                .uri(URI.create(arguments.get("uri").asText()))
                .regionId(arguments.get("region").asInt());
        if (!arguments.get("client_id").isNull()) {
            builder.clientId(arguments.get("client_id").asText());
        }
        return builder.build();
    }
}
