import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/**
 * Apache's DistributedLog at work, for `python -m benchmarks stream --peer apache`: sets up a cluster and a namespace, takes
 * one command a line from standard input and answers each with one line of numbers, or with `error` and a reason. It
 * ends with its input. Its arguments are the cluster's URI and settings of streams, as NAME=VALUE.
 *
 * <p>A turn has streams of its own. Each gets one record when it is opened, and so a segment: that work, and completing
 * segments, is not in the time of writing. The CPU time is that of the whole process, its compiler and its garbage
 * collector included.
 */
public final class ApacheStreams {
    private static final long WITHIN_S = 120; // Nothing here may hang for ever.
    private static final int OPENING_MAX = 32; // Streams that are opened, closed or deleted at the same time.
    private static final int READ_AT_ONCE = 1_000;
    private static final long FIRST = 1; // The txid of each stream's first record.
    private static final String PATH = "/bench";
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final URI uri;
    private final String cluster;
    private final Map<String, String> settings;
    private final Map<String, Namespace> namespaces = new HashMap<>(); // By quorum: Java keeps its settings there.
    private final ExecutorService opening = Executors.newFixedThreadPool(OPENING_MAX, ApacheStreams::daemon);
    private final ExecutorService reading =
            Executors.newFixedThreadPool(Runtime.getRuntime().availableProcessors(), ApacheStreams::daemon);

    // What one command opens for the next.
    private List<OpenWriter> writers = List.of();
    private List<Tail> tails = List.of();
    private Delivery delivery;

    private ApacheStreams(String cluster, Map<String, String> settings) {
        this.cluster = cluster;
        this.uri = URI.create("distributedlog://" + URI.create(cluster).getAuthority() + PATH);
        this.settings = settings;
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // Whatever is logged must not come between the answers.
        Map<String, String> settings = new HashMap<>();
        for (String word : Arrays.asList(words).subList(1, words.length)) {
            settings.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        ApacheStreams streams = new ApacheStreams(words[0], settings);
        streams.setUp();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answers.println("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(streams.answer(line.split(" ")));
        }
        System.exit(0); // Nobody waits for the namespaces to close.
    }

    private void setUp() throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(cluster);
        BookKeeperAdmin.initNewCluster(configuration);
        URI place = URI.create(cluster);
        DLMetadata.create(new BKDLConfig(place.getAuthority(), place.getPath())).create(uri);
    }

    private String answer(String[] words) {
        try {
            int[] numbers = Arrays.stream(words).skip(1).mapToInt(Integer::parseInt).toArray();
            if (words[0].equals("await")) {
                return await(numbers[0]);
            }
            Turn turn = new Turn(numbers[0], Arrays.copyOfRange(numbers, 1, 4), numbers[4], numbers[5]);
            return switch (words[0]) {
                case "open" -> open(turn);
                case "write" -> write(turn, numbers[6], numbers[7], numbers[8]);
                case "close" -> close();
                case "read" -> read(turn, numbers[6]);
                case "follow" -> follow(turn, numbers[6]);
                case "deliver" -> deliver(turn, numbers[6], numbers[7]);
                case "delete" -> delete(turn);
                default -> throw new IllegalArgumentException("no such command: " + words[0]);
            };
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            return "error " + cause.toString().replace('\n', ' ');
        }
    }

    private String await(int bookies) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WITHIN_S);
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(cluster);
        try (BookKeeper client = new BookKeeper(configuration);
                BookKeeperAdmin admin = new BookKeeperAdmin(client)) {
            while (admin.getAvailableBookies().size() < bookies) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the bookies did not come");
                }
                Thread.sleep(50);
            }
        }
        return "ok";
    }

    private Namespace namespace(Turn turn) throws Exception {
        String quorum = Arrays.toString(turn.quorum);
        Namespace known = namespaces.get(quorum);
        if (known == null) {
            DistributedLogConfiguration configuration = new DistributedLogConfiguration();
            // What is written with one call is one entry and leaves at once. If nothing follows it, readers are told.
            // A buffer that gathers single writes (of 64 KiB, flushed every 10 ms) was slower.
            configuration.setProperty("writerOutputBufferSize", 0);
            configuration.setProperty("enableImmediateFlush", true);
            configuration.setProperty("bkcEnsembleSize", turn.quorum[0]);
            configuration.setProperty("bkcWriteQuorumSize", turn.quorum[1]);
            configuration.setProperty("bkcAckQuorumSize", turn.quorum[2]);
            // As much is read ahead as by Quire: 8 MiB of such entries. By default it is 10 entries, which is slower.
            configuration.setProperty("readAheadMaxRecords", 128);
            configuration.setProperty("readAheadBatchSize", 16);
            configuration.setProperty("numPrefetchEntriesPerLogSegment", 16);
            configuration.setProperty("maxPrefetchEntriesPerLogSegment", 128);
            // A busy machine is no reason to replace a bookie.
            configuration.setProperty("bkcReadTimeoutSeconds", 60);
            configuration.setProperty("bkcWriteTimeoutSeconds", 60);
            configuration.setProperty("zkSessionTimeoutSeconds", 60);
            configuration.setProperty("bkcZKSessionTimeoutSeconds", 60);
            settings.forEach(configuration::setProperty);
            known = NamespaceBuilder.newBuilder().conf(configuration).uri(uri).build();
            namespaces.put(quorum, known);
        }
        return known;
    }

    // --- As fast as the window allows

    /** Open writers, each with one record. They stay open. Answers: ns, CPU ns. */
    private String open(Turn turn) throws Exception {
        Clock clock = new Clock();
        writers = openWriters(namespace(turn), turn);
        return clock.read();
    }

    /** What was left open. */
    private String close() throws Exception {
        forEach(tails, Tail::close);
        forEach(writers, OpenWriter::close);
        tails = List.of();
        writers = List.of();
        return "ok";
    }

    /** As many records as may be in flight, until all are acknowledged. Answers: ns, CPU ns. */
    private String write(Turn turn, int records, int callRecords, int calls) throws Exception {
        Semaphore room = new Semaphore(turn.streams * callRecords * calls);
        AtomicReference<Throwable> problem = new AtomicReference<>();
        byte[] payload = payload(turn.bytes);
        Clock clock = new Clock();
        for (int begin = 0; begin < records && problem.get() == null; begin += callRecords) {
            int count = Math.min(callRecords, records - begin);
            for (OpenWriter writer : writers) {
                take(room, count);
                writer.write(payload, FIRST + 1 + begin, count, (done, thrown) -> {
                    note(problem, thrown);
                    room.release(count);
                });
            }
        }
        take(room, turn.streams * callRecords * calls);
        String took = clock.read();
        check(problem);
        return took;
    }

    /** From opening readers to the last record. Answers: records, ns, CPU ns. */
    private String read(Turn turn, int records) throws Exception {
        Namespace namespace = namespace(turn);
        Semaphore done = new Semaphore(0);
        AtomicReference<Throwable> problem = new AtomicReference<>();
        Clock clock = new Clock();
        List<Tail> tails = each(turn.names(), name -> new Tail(namespace, name, records, problem, done, record -> { }));
        take(done, turn.streams);
        String took = clock.read();
        check(problem);
        for (Tail tail : tails) {
            if (tail.bytes != (long) records * turn.bytes) {
                throw new IllegalStateException(tail.bytes + " bytes were read of " + (long) records * turn.bytes);
            }
        }
        forEach(tails, Tail::close);
        return (long) turn.streams * records + " " + took;
    }

    // --- At a fixed rate

    /** Open writers and readers, which come to the tails behind the one record that each stream has. They stay open. */
    private String follow(Turn turn, int records) throws Exception {
        Namespace namespace = namespace(turn);
        writers = openWriters(namespace, turn);
        delivery = new Delivery(new long[records], new long[records], new Semaphore(0), new AtomicReference<>());
        Semaphore begun = new Semaphore(0);
        Seen seen = record -> {
            int place = (int) (record.getTransactionId() - FIRST - 1);
            if (place < 0) {
                begun.release();
            } else {
                delivery.waited[place] = System.nanoTime() - delivery.due[place];
            }
        };
        tails = each(turn.names(), name -> {
            int share = 1 + shareOf(numberOf(name), records, turn.streams);
            return new Tail(namespace, name, share, delivery.problem, delivery.done, seen);
        });
        take(begun, turn.streams);
        return "ok";
    }

    /** Records on their way to readers: when each was due, and the ns from then until its reader had it. */
    private record Delivery(long[] due, long[] waited, Semaphore done, AtomicReference<Throwable> problem) {
    }

    /** After `follow`. Answers: ns, CPU ns, and the ns from when each record was due until its reader had it. */
    private String deliver(Turn turn, int records, int rate) throws Exception {
        byte[] payload = payload(turn.bytes);
        long[] due = delivery.due;
        Clock clock = new Clock();
        long began = System.nanoTime();
        for (int i = 0; i < records; i++) {
            due[i] = began + i * 1_000_000_000L / rate;
            for (long left = due[i] - System.nanoTime(); left > 0; left = due[i] - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            OpenWriter writer = writers.get(i % turn.streams);
            writer.write(payload, FIRST + 1 + i, 1, (place, thrown) -> note(delivery.problem, thrown));
        }
        take(delivery.done, turn.streams);
        String took = clock.read();
        check(delivery.problem);
        return took + " " + Arrays.stream(delivery.waited).mapToObj(Long::toString).collect(Collectors.joining(" "));
    }

    private static int numberOf(String name) {
        return Integer.parseInt(name.substring(name.indexOf('-') + 1));
    }

    private static int shareOf(int number, int records, int streams) {
        return records / streams + (number < records % streams ? 1 : 0);
    }

    // --- Many streams

    /** The streams of one turn. */
    private record Turn(int number, int[] quorum, int streams, int bytes) {
        List<String> names() {
            List<String> names = new ArrayList<>();
            for (int stream = 0; stream < streams; stream++) {
                names.add("turn" + number + "-" + stream);
            }
            return names;
        }
    }

    private interface Done {
        void accept(DLSN place, Throwable thrown);
    }

    private interface Seen {
        void accept(LogRecordWithDLSN record);
    }

    private interface Work<F, T> {
        T on(F one) throws Exception;
    }

    private interface Ending<F> {
        void on(F one) throws Exception;
    }

    private record OpenWriter(DistributedLogManager log, AsyncLogWriter writer) {
        /** Some records with one call. They are acknowledged in order, so that the last one speaks for all. */
        void write(byte[] payload, long txid, int count, Done done) {
            if (count == 1) {
                writer.write(new LogRecord(txid, payload)).whenComplete(done::accept);
                return;
            }
            List<LogRecord> records = new ArrayList<>(count);
            for (int i = 0; i < count; i++) {
                records.add(new LogRecord(txid + i, payload));
            }
            writer.writeBulk(records).whenComplete((places, thrown) -> {
                if (thrown != null) {
                    done.accept(null, thrown);
                } else {
                    places.get(count - 1).whenComplete(done::accept);
                }
            });
        }

        void close() throws Exception {
            ApacheStreams.<Void>await(writer.asyncClose());
            log.close();
        }
    }

    private List<OpenWriter> openWriters(Namespace namespace, Turn turn) throws Exception {
        byte[] payload = payload(turn.bytes);
        return each(turn.names(), name -> {
            DistributedLogManager log = namespace.openLog(name);
            OpenWriter writer = new OpenWriter(log, await(log.openAsyncLogWriter()));
            CompletableFuture<DLSN> first = new CompletableFuture<>();
            writer.write(payload, FIRST, 1, (place, thrown) -> {
                if (thrown != null) {
                    first.completeExceptionally(thrown);
                } else {
                    first.complete(place);
                }
            });
            await(first);
            return writer;
        });
    }

    /** A reader from the beginning of a stream, until so many records were seen. */
    private final class Tail {
        private final DistributedLogManager log;
        private final AsyncLogReader reader;
        private final AtomicReference<Throwable> problem;
        private final Semaphore done;
        private final Seen seen;
        private int left;
        private volatile long bytes;

        Tail(
                Namespace namespace,
                String name,
                int records,
                AtomicReference<Throwable> problem,
                Semaphore done,
                Seen seen) throws Exception {
            this.log = namespace.openLog(name);
            this.reader = ApacheStreams.await(log.openAsyncLogReader(DLSN.InitialDLSN));
            this.left = records;
            this.problem = problem;
            this.done = done;
            this.seen = seen;
            readOn();
        }

        private void readOn() {
            reader.readBulk(READ_AT_ONCE).whenCompleteAsync((found, thrown) -> {
                if (thrown != null) {
                    note(problem, thrown);
                    done.release();
                    return;
                }
                long size = 0;
                for (LogRecordWithDLSN record : found) {
                    size += record.getPayload().length;
                    seen.accept(record);
                }
                bytes += size;
                left -= found.size();
                if (left > 0) {
                    readOn();
                } else {
                    done.release();
                }
            }, reading);
        }

        void close() throws Exception {
            ApacheStreams.<Void>await(reader.asyncClose());
            log.close();
        }
    }

    private String delete(Turn turn) throws Exception {
        Namespace namespace = namespace(turn);
        forEach(turn.names(), namespace::deleteLog);
        return "ok";
    }

    private <F, T> List<T> each(List<F> ones, Work<F, T> work) throws Exception {
        List<Callable<T>> calls = new ArrayList<>();
        ones.forEach(one -> calls.add(() -> work.on(one)));
        List<T> found = new ArrayList<>();
        for (Future<T> answer : opening.invokeAll(calls, WITHIN_S, TimeUnit.SECONDS)) {
            found.add(answer.get());
        }
        return found;
    }

    private <F> void forEach(List<F> ones, Ending<F> work) throws Exception {
        each(ones, one -> {
            work.on(one);
            return null;
        });
    }

    // --- Small things

    /** Nanoseconds, of the clock and of the CPU, from when it was made. */
    private static final class Clock {
        private final long cpu = SYSTEM.getProcessCpuTime();
        private final long began = System.nanoTime();

        String read() {
            return System.nanoTime() - began + " " + (SYSTEM.getProcessCpuTime() - cpu);
        }
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    private static <T> T await(CompletableFuture<T> answer) throws Exception {
        return answer.get(WITHIN_S, TimeUnit.SECONDS);
    }

    private static byte[] payload(int bytes) {
        byte[] payload = new byte[bytes];
        new Random().nextBytes(payload);
        return payload;
    }

    private static void take(Semaphore permits, int count) throws Exception {
        if (!permits.tryAcquire(count, WITHIN_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no answers for " + WITHIN_S + " s");
        }
    }

    private static void note(AtomicReference<Throwable> problem, Throwable thrown) {
        if (thrown != null) {
            problem.compareAndSet(null, thrown); // What came first says most.
        }
    }

    private static void check(AtomicReference<Throwable> problem) throws Exception {
        if (problem.get() != null) {
            throw new ExecutionException(problem.get());
        }
    }
}
