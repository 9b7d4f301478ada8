package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BookKeeper;

/**
 * Does with the classes of Apache BookKeeper and DistributedLog what Python asks for, one JSON object a line.
 *
 * <p>{@code {"id": 7, "do": "ledger.read", ...}} is answered by {@code {"id": 7, "ok": ...}}, or by
 * {@code {"id": 7, "error": ..., "causes": [...], "message": ...}}. Requests run side by side and are answered as they
 * are done. The process ends when its standard input does, so it never outlives whoever asks.
 */
public final class Peer {
    static final ObjectMapper JSON = new ObjectMapper();

    /** What one word of the protocol does. The result is turned into JSON; an exception becomes an error answer. */
    interface Command {
        Object run(JsonNode arguments) throws Exception;
    }

    private final PrintStream answers;
    private final Map<String, Command> commands = new HashMap<>();

    private Peer(PrintStream answers) {
        this.answers = answers;
        Clusters clusters = new Clusters();
        commands.put("about", arguments -> BookKeeper.class.getPackage().getImplementationVersion());
        clusters.addTo(commands);
        new LedgerCommands(clusters).addTo(commands);
        new BookieCommands(clusters).addTo(commands);
        LedgerClients clients = new LedgerClients();
        clients.addTo(commands);
        new HandleCommands(clients).addTo(commands);
        new ReplicaCommands(clients).addTo(commands);
        Namespaces namespaces = new Namespaces();
        namespaces.addTo(commands);
        new StreamCommands(namespaces).addTo(commands);
        new StreamReaders(namespaces).addTo(commands);
        new StreamWriters(namespaces).addTo(commands);
        new SyncStreamWriters(namespaces).addTo(commands);
    }

    public static void main(String[] words) throws IOException {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err); // A library that prints must not get between the answers.
        new Peer(answers).serve(new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)));
        Runtime.getRuntime().halt(0); // Sessions that a test left open are not worth a wait.
    }

    private void serve(BufferedReader requests) throws IOException {
        ExecutorService workers = Executors.newCachedThreadPool();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            workers.execute(() -> answer(request));
        }
    }

    private void answer(JsonNode request) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", request.get("id"));
        try {
            Command command = commands.get(request.get("do").asText());
            if (command == null) {
                throw new IllegalArgumentException("unknown command " + request.get("do"));
            }
            answer.set("ok", JSON.valueToTree(command.run(request)));
        } catch (Throwable thrown) {
            describe(thrown, answer);
        }
        synchronized (answers) {
            answers.println(answer);
            answers.flush();
        }
    }

    /** Name the error by what went wrong, not by the wrappers that futures put around it. */
    private static void describe(Throwable thrown, ObjectNode answer) {
        Throwable error = thrown;
        while ((error instanceof CompletionException || error instanceof ExecutionException)
                && error.getCause() != null) {
            error = error.getCause();
        }
        error.printStackTrace();
        answer.put("error", error.getClass().getSimpleName());
        answer.put("message", String.valueOf(error.getMessage()));
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            answer.withArray("causes").add(cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
    }
}
