package org.apache.distributedlog;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.LogWriter;

/** A door to what DistributedLog's writers can do and do not offer outside their package. */
public final class WriterDoor {
    private WriterDoor() {
    }

    /** Transmit what is buffered, and make it visible. */
    public static CompletableFuture<Long> commit(AsyncLogWriter writer) {
        return ((BKAsyncLogWriter) writer).flushAndCommit();
    }

    public static CompletableFuture<DLSN> writeControl(AsyncLogWriter writer, long txid) {
        LogRecord control = new LogRecord(txid, DistributedLogConstants.CONTROL_RECORD_CONTENT);
        return ((BKAsyncLogWriter) writer).writeControlRecord(control);
    }

    /**
     * Go on in a new segment, by the same steps as when one is old or long enough. Nothing else may be written
     * meanwhile.
     *
     * @param txid of the control record that sets it off, since a writer only looks whether to roll when it writes
     */
    public static void roll(AsyncLogWriter writer, long txid, long withinMs) throws Exception {
        BKAsyncLogWriter rolled = (BKAsyncLogWriter) writer;
        BKLogSegmentWriter before = rolled.getCachedLogWriter();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(withinMs);
        rolled.setForceRolling(true);
        try {
            writeControl(writer, txid).get(withinMs, TimeUnit.MILLISECONDS);
            while (rolled.getCachedLogWriter() == before) {
                if (System.nanoTime() > deadline) {
                    throw new TimeoutException("the writer did not roll");
                }
                Thread.sleep(5); // Nobody is told when it is done.
            }
        } finally {
            rolled.setForceRolling(false);
        }
    }

    /** As {@link #roll}; the record that is written meanwhile is the first one of the new segment. */
    public static void rollAndWrite(LogWriter writer, LogRecord record) throws Exception {
        BKSyncLogWriter rolled = (BKSyncLogWriter) writer;
        rolled.setForceRolling(true);
        try {
            rolled.write(record);
        } finally {
            rolled.setForceRolling(false);
        }
    }
}
