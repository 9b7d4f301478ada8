import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * Apache's Java client at work, for `python -m benchmarks ledger --peer apache`: sets up a cluster, then takes one command a line
 * from standard input and answers each with one line of numbers, or with `error` and a reason. It ends with its input.
 *
 * <p>Times are those of the work alone: ledgers are made before and sealed after. The CPU time is that of the whole
 * process, its compiler and its garbage collector included.
 */
public final class ApacheLedgers {
    private static final byte[] PASSWORD = new byte[0];
    private static final long WITHIN_S = 120; // Nothing here may hang for ever.
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final BookKeeper client;

    private ApacheLedgers(BookKeeper client) {
        this.client = client;
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // Whatever is logged must not come between the answers.
        ServerConfiguration cluster = new ServerConfiguration();
        cluster.setMetadataServiceUri(words[0]);
        BookKeeperAdmin.initNewCluster(cluster);

        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(words[0]);
        settings.setUseV2WireProtocol(true); // What Quire's client speaks, and the faster one of the two.
        settings.setThrottleValue(0); // By default no more than 5,000 adds a second may begin.
        settings.setAddEntryTimeout(60).setReadEntryTimeout(60); // A busy machine is no reason to replace a bookie.
        settings.setZkTimeout(60_000);
        try (BookKeeper client = new BookKeeper(settings)) {
            ApacheLedgers ledgers = new ApacheLedgers(client);
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            answers.println("ready");
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                answers.println(ledgers.answer(line.split(" ")));
            }
        }
    }

    private String answer(String[] words) {
        try {
            int[] numbers = Arrays.stream(words).skip(1).mapToInt(Integer::parseInt).toArray();
            return switch (words[0]) {
                case "await" -> await(numbers[0]);
                case "append" -> append(create(numbers), numbers[3], numbers[4], numbers[5]);
                case "paced" -> paced(create(numbers), numbers[3], numbers[4], numbers[5]);
                case "read" -> read(numbers[0], numbers[1]);
                case "delete" -> delete(numbers[0]);
                default -> throw new IllegalArgumentException("no such command: " + words[0]);
            };
        } catch (Exception error) {
            return "error " + error.toString().replace('\n', ' ');
        }
    }

    private String await(int bookies) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WITHIN_S);
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client)) {
            while (admin.getAvailableBookies().size() < bookies) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the bookies did not come");
                }
                Thread.sleep(50);
            }
        }
        return "ok";
    }

    private LedgerHandle create(int[] quorum) throws Exception {
        return client.createLedger(quorum[0], quorum[1], quorum[2], DigestType.CRC32C, PASSWORD);
    }

    /** As many entries as may be in flight, until all are acknowledged. Answers: ledger, ns, CPU ns. */
    private String append(LedgerHandle ledger, int entries, int bytes, int window) throws Exception {
        byte[] payload = payload(bytes);
        Semaphore room = new Semaphore(window);
        AtomicInteger problem = new AtomicInteger();
        long cpu = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        for (int i = 0; i < entries && problem.get() == 0; i++) {
            take(room, 1);
            ledger.asyncAddEntry(payload, (code, handle, entryId, context) -> {
                if (code != BKException.Code.OK) {
                    problem.compareAndSet(0, code); // What came first says most.
                }
                room.release();
            }, null);
        }
        take(room, window);
        long took = System.nanoTime() - began;
        long used = SYSTEM.getProcessCpuTime() - cpu;
        check(problem);
        ledger.close();
        return ledger.getId() + " " + took + " " + used;
    }

    /** Entries at a fixed rate, whatever becomes of those before. Answers: ledger, then ns from when each was due. */
    private String paced(LedgerHandle ledger, int entries, int bytes, int rate) throws Exception {
        byte[] payload = payload(bytes);
        long[] waited = new long[entries];
        Semaphore done = new Semaphore(0);
        AtomicInteger problem = new AtomicInteger();
        long began = System.nanoTime();
        for (int i = 0; i < entries; i++) {
            int number = i;
            long due = began + i * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            ledger.asyncAddEntry(payload, (code, handle, entryId, context) -> {
                waited[number] = System.nanoTime() - due;
                if (code != BKException.Code.OK) {
                    problem.compareAndSet(0, code); // What came first says most.
                }
                done.release();
            }, null);
        }
        take(done, entries);
        check(problem);
        ledger.close();
        return ledger.getId() + " " + Arrays.stream(waited).mapToObj(Long::toString).collect(Collectors.joining(" "));
    }

    /** All entries in order, in batches with one ahead, as Quire reads them. Answers: entries, ns, CPU ns. */
    private String read(int ledgerId, int batchBytes) throws Exception {
        try (LedgerHandle ledger = client.openLedger(ledgerId, DigestType.CRC32C, PASSWORD)) {
            long end = ledger.getLastAddConfirmed() + 1;
            long count = 0;
            long bytes = 0;
            long cpu = SYSTEM.getProcessCpuTime();
            long began = System.nanoTime();
            CompletableFuture<LedgerEntries> ahead = batch(ledger, 0, end, batchBytes);
            while (count < end) {
                try (LedgerEntries entries = ahead.get(WITHIN_S, TimeUnit.SECONDS)) {
                    for (LedgerEntry ignored : entries) {
                        count++;
                    }
                    ahead = batch(ledger, count, end, batchBytes);
                    for (LedgerEntry entry : entries) {
                        bytes += entry.getEntryBytes().length;
                    }
                }
            }
            long took = System.nanoTime() - began;
            long used = SYSTEM.getProcessCpuTime() - cpu;
            if (bytes != ledger.getLength()) {
                throw new IllegalStateException(bytes + " bytes were read of " + ledger.getLength());
            }
            return count + " " + took + " " + used;
        }
    }

    /** Striped ledgers have no batches: there Java reads as many entries one by one. */
    private static CompletableFuture<LedgerEntries> batch(LedgerHandle ledger, long first, long end, int batchBytes) {
        if (first >= end) {
            return null;
        }
        long entryBytes = Math.max(ledger.getLength() / end, 1);
        int entries = (int) Math.min(end - first, Math.max(batchBytes / entryBytes, 1));
        return ledger.batchReadAsync(first, entries, batchBytes);
    }

    private String delete(int ledgerId) throws Exception {
        client.deleteLedger(ledgerId);
        return "ok";
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

    private static void check(AtomicInteger problem) throws BKException {
        if (problem.get() != 0) {
            throw BKException.create(problem.get());
        }
    }
}
