package quire.interop;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.api.AsyncLogWriter;

/** Writes record after record to a stream, payloads under their numbers as txids, until it is told to stop or fails. */
final class BackgroundStreamWriter {
    private final AsyncLogWriter writer;
    private final Payloads payloads;
    private final long firstTxid;
    private final int inflightMax;
    private final long pauseNs;
    private final Semaphore slots;
    private final Thread thread;

    private volatile boolean stopped;
    private long acknowledged; // As many records, and so, since they are acknowledged in order, the first ones.
    private DLSN last;
    private Throwable error;

    BackgroundStreamWriter(AsyncLogWriter writer, Payloads payloads, long firstTxid, int inflightMax, long pauseUs) {
        this.writer = writer;
        this.payloads = payloads;
        this.firstTxid = firstTxid;
        this.inflightMax = inflightMax;
        this.pauseNs = TimeUnit.MICROSECONDS.toNanos(pauseUs);
        this.slots = new Semaphore(inflightMax);
        this.thread = new Thread(this::write, "background stream writer");
        thread.setDaemon(true);
        thread.start();
    }

    private void write() {
        for (long txid = firstTxid; !stopped; txid++) {
            slots.acquireUninterruptibly();
            long expected = txid - firstTxid;
            writer.write(new LogRecord(txid, payloads.get(txid))).whenComplete((place, thrown) -> {
                note(expected, place, thrown);
                slots.release();
            });
            LockSupport.parkNanos(pauseNs);
        }
    }

    private synchronized void note(long expected, DLSN place, Throwable thrown) {
        Throwable wrong = thrown;
        if (wrong == null && (acknowledged != expected || (last != null && place.compareTo(last) <= 0))) {
            wrong = new IllegalStateException(
                    "record " + expected + " was acknowledged at " + place + " after " + acknowledged + " at " + last);
        }
        if (wrong == null) {
            acknowledged++;
            last = place;
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
        facts.put("last", last == null ? null : Namespaces.numbers(last));
        facts.put("error", error == null ? null : error.getClass().getSimpleName());
        return facts;
    }

    /** Begin nothing new, and wait until every write that is under way was answered. */
    Map<String, Object> stop(long withinMs) throws Exception {
        stopped = true;
        thread.join(withinMs);
        if (!slots.tryAcquire(inflightMax, withinMs, TimeUnit.MILLISECONDS)) {
            throw new TimeoutException("writes are still under way: " + progress());
        }
        slots.release(inflightMax);
        return progress();
    }
}
