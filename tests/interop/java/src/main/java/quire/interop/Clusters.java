package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.net.BookieId;

/** The clusters that are open, by number, and what concerns a cluster as a whole. */
final class Clusters {
    private final Map<Long, Cluster> open = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("cluster.open", arguments -> {
            Cluster cluster = new Cluster(arguments.get("uri").asText(), arguments.get("session_timeout_ms").asInt());
            long number = numbers.incrementAndGet();
            open.put(number, cluster);
            return number;
        });
        commands.put("cluster.close", arguments -> {
            Cluster cluster = of(arguments);
            open.remove(arguments.get("cluster").asLong());
            cluster.close();
            return null;
        });
        commands.put("cluster.instance_id", arguments -> of(arguments).registrations.getClusterInstanceId());
        commands.put("cluster.layout", arguments -> {
            LedgerLayout layout = of(arguments).layouts.readLedgerLayout();
            return Map.of(
                    "manager", layout.getManagerFactoryClass(),
                    "manager_version", layout.getManagerVersion(),
                    "format_version", layout.getLayoutFormatVersion());
        });
        commands.put("admin.look", arguments -> look(arguments.get("uri").asText()));
    }

    Cluster of(JsonNode arguments) {
        Cluster cluster = open.get(arguments.get("cluster").asLong());
        if (cluster == null) {
            throw new IllegalStateException("cluster " + arguments.get("cluster") + " is not open");
        }
        return cluster;
    }

    /** What an administrator's client sees who knows nothing but the URI. */
    private static Map<String, Object> look(String uri) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        try (BookKeeperAdmin admin = new BookKeeperAdmin(configuration)) {
            List<Long> ledgers = new ArrayList<>();
            admin.listLedgers().forEach(ledgers::add);
            return Map.of(
                    "writable", names(admin.getAvailableBookies()),
                    "readonly", names(admin.getReadOnlyBookies()),
                    "all", names(admin.getAllBookies()),
                    "ledgers", ledgers);
        }
    }

    static TreeSet<String> names(Iterable<BookieId> bookies) {
        TreeSet<String> names = new TreeSet<>();
        bookies.forEach(bookie -> names.add(bookie.toString()));
        return names;
    }
}
