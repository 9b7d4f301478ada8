package quire.interop;

import io.netty.buffer.Unpooled;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.LedgerHandle;

/** Appends to a ledger until it is told to stop or an add fails. Nothing is appended after the first failure. */
final class BackgroundWriter {
    private final LedgerHandle ledger;
    private final Payloads payloads;
    private final int inflightMax;
    private final long pauseNs;
    private final Semaphore slots;
    private final Thread thread;

    private volatile boolean stopped;
    private long acknowledged; // As many entries, and so, since they are acknowledged in order, all ids below this.
    private Throwable error;

    BackgroundWriter(LedgerHandle ledger, Payloads payloads, int inflightMax, long pauseUs) {
        this.ledger = ledger;
        this.payloads = payloads;
        this.inflightMax = inflightMax;
        this.pauseNs = TimeUnit.MICROSECONDS.toNanos(pauseUs);
        this.slots = new Semaphore(inflightMax);
        this.thread = new Thread(this::write, "background writer");
        thread.setDaemon(true);
        thread.start();
    }

    private void write() {
        for (long number = 0; !stopped; number++) {
            slots.acquireUninterruptibly();
            long expected = number;
            ledger.appendAsync(Unpooled.wrappedBuffer(payloads.get(number))).whenComplete((entry, thrown) -> {
                note(expected, entry, thrown);
                slots.release();
            });
            LockSupport.parkNanos(pauseNs);
        }
    }

    private synchronized void note(long expected, Long entry, Throwable thrown) {
        Throwable wrong = thrown;
        if (wrong == null && (entry != expected || acknowledged != expected)) {
            wrong = new IllegalStateException(
                    "entry " + entry + " was acknowledged as number " + expected + " after " + acknowledged);
        }
        if (wrong == null) {
            acknowledged++;
            return;
        }
        stopped = true;
        if (error == null) {
            error = wrong;
        }
    }

    synchronized Map<String, Object> progress() {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("acknowledged", acknowledged);
        facts.put("error", error == null ? null : error.getClass().getSimpleName());
        return facts;
    }

    /** Begin nothing new, and wait until every add that is under way was answered. */
    Map<String, Object> stop(long withinMs) throws Exception {
        stopped = true;
        thread.join(withinMs);
        if (!slots.tryAcquire(inflightMax, withinMs, TimeUnit.MILLISECONDS)) {
            throw new TimeoutException("adds are still under way: " + progress());
        }
        slots.release(inflightMax);
        return progress();
    }
}
