package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.DefaultBookieAddressResolver;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

/** Bookies and their cookies, through BookKeeper's registration manager, registration client and address resolver. */
final class BookieCommands {
    private static final long ANSWER_WITHIN_S = 20; // BookKeeper's own futures can stay open for ever.

    private final Clusters clusters;

    BookieCommands(Clusters clusters) {
        this.clusters = clusters;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("bookie.list", arguments -> Clusters.names(list(arguments).getValue()));
        commands.put("bookie.info", arguments -> {
            RegistrationClient bookies = clusters.of(arguments).bookies;
            return write(bookies.getBookieServiceInfo(bookie(arguments)).get(ANSWER_WITHIN_S, TimeUnit.SECONDS)
                    .getValue());
        });
        commands.put("bookie.resolve", arguments -> {
            BookieSocketAddress address =
                    new DefaultBookieAddressResolver(clusters.of(arguments).bookies).resolve(bookie(arguments));
            return List.of(address.getHostName(), address.getPort());
        });
        commands.put("bookie.register", arguments -> {
            clusters.of(arguments).registrations.registerBookie(
                    bookie(arguments), arguments.get("readonly").asBoolean(), readInfo(arguments.get("info")));
            return null;
        });
        commands.put("bookie.unregister", arguments -> {
            clusters.of(arguments).registrations
                    .unregisterBookie(bookie(arguments), arguments.get("readonly").asBoolean());
            return null;
        });
        commands.put("bookie.watch", arguments -> {
            Cluster cluster = clusters.of(arguments);
            cluster.watched.start(cluster.bookies);
            return null;
        });
        commands.put("bookie.await_lists", arguments -> {
            clusters.of(arguments).watched.await(texts(arguments.get("writable")), texts(arguments.get("readonly")),
                    arguments.get("within_ms").asLong());
            return null;
        });
        commands.put("cookie.read", this::readCookie);
        commands.put("cookie.write", this::writeCookie);
        commands.put("cookie.remove", arguments -> {
            clusters.of(arguments).registrations.removeCookie(bookie(arguments), version(arguments));
            return null;
        });
    }

    private static BookieId bookie(JsonNode arguments) {
        return BookieId.parse(arguments.get("bookie").asText());
    }

    private static Version version(JsonNode arguments) {
        return arguments.get("version").isNull() ? Version.NEW : new LongVersion(arguments.get("version").asLong());
    }

    private static TreeSet<String> texts(JsonNode array) {
        TreeSet<String> found = new TreeSet<>();
        array.forEach(item -> found.add(item.asText()));
        return found;
    }

    // --- Registrations

    private Versioned<? extends Iterable<BookieId>> list(JsonNode arguments) throws Exception {
        RegistrationClient bookies = clusters.of(arguments).bookies;
        return (switch (arguments.get("which").asText()) {
            case "writable" -> bookies.getWritableBookies();
            case "readonly" -> bookies.getReadOnlyBookies();
            case "all" -> bookies.getAllBookies();
            default -> throw new IllegalArgumentException("no such list: " + arguments.get("which"));
        }).get(ANSWER_WITHIN_S, TimeUnit.SECONDS);
    }

    private static Map<String, Object> write(BookieServiceInfo info) {
        List<Object> endpoints = new ArrayList<>();
        for (BookieServiceInfo.Endpoint endpoint : info.getEndpoints()) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("id", endpoint.getId());
            facts.put("host", endpoint.getHost());
            facts.put("port", endpoint.getPort());
            facts.put("protocol", endpoint.getProtocol());
            facts.put("auth", List.copyOf(endpoint.getAuth()));
            facts.put("extensions", List.copyOf(endpoint.getExtensions()));
            endpoints.add(facts);
        }
        return Map.of("endpoints", endpoints, "properties", info.getProperties());
    }

    private static BookieServiceInfo readInfo(JsonNode facts) {
        List<BookieServiceInfo.Endpoint> endpoints = new ArrayList<>();
        for (JsonNode endpoint : facts.get("endpoints")) {
            endpoints.add(new BookieServiceInfo.Endpoint(endpoint.get("id").asText(), endpoint.get("port").asInt(),
                    endpoint.get("host").asText(), endpoint.get("protocol").asText(),
                    List.of(strings(endpoint.get("auth"))), List.of(strings(endpoint.get("extensions")))));
        }
        Map<String, String> properties = new LinkedHashMap<>();
        for (Map.Entry<String, JsonNode> entry : facts.get("properties").properties()) {
            properties.put(entry.getKey(), entry.getValue().asText());
        }
        return new BookieServiceInfo(properties, endpoints);
    }

    // --- Cookies

    /** Read a stored cookie, and say whether BookKeeper finds it equal to one that is made from the given fields. */
    private Map<String, Object> readCookie(JsonNode arguments) throws Exception {
        Versioned<Cookie> stored =
                Cookie.readFromRegistrationManager(clusters.of(arguments).registrations, bookie(arguments));
        Cookie expected = cookie(arguments.get("expected"));
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("text", stored.getValue().toString());
        answer.put("equal", stored.getValue().equals(expected));
        answer.put("version", ((LongVersion) stored.getVersion()).getLongVersion());
        return answer;
    }

    private Object writeCookie(JsonNode arguments) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setBookieId(arguments.get("cookie").get("bookie_id").asText());
        cookie(arguments.get("cookie"))
                .writeToRegistrationManager(clusters.of(arguments).registrations, configuration, version(arguments));
        return null;
    }

    private static Cookie cookie(JsonNode fields) {
        Cookie.Builder builder = Cookie.newBuilder()
                .setLayoutVersion(fields.get("layout_version").asInt())
                .setBookieId(fields.get("bookie_id").asText())
                .setJournalDirs(String.join(",", strings(fields.get("journal_dirs"))))
                .setLedgerDirs(Cookie.encodeDirPaths(strings(fields.get("ledger_dirs"))));
        if (!fields.get("index_dirs").isNull()) {
            builder.setIndexDirs(Cookie.encodeDirPaths(strings(fields.get("index_dirs"))));
        }
        if (!fields.get("instance_id").isNull()) {
            builder.setInstanceId(fields.get("instance_id").asText());
        }
        return builder.build();
    }

    private static String[] strings(JsonNode array) {
        List<String> found = new ArrayList<>();
        array.forEach(item -> found.add(item.asText()));
        return found.toArray(String[]::new);
    }
}
