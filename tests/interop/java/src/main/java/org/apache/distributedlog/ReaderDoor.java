package org.apache.distributedlog;

import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.logsegment.LogSegmentEntryReader;

/** A door to what DistributedLog's readers are at. It stands in their package because that is visible nowhere else. */
public final class ReaderDoor {
    private ReaderDoor() {
    }

    /** The ledger of the segment in progress at whose end a reader waits for more; null if it waits in none. */
    public static Long waitsIn(AsyncLogReader reader) {
        ReadAheadEntryReader ahead = ((BKAsyncLogReader) reader).getReadAheadReader();
        ReadAheadEntryReader.SegmentReader current = ahead == null ? null : ahead.getCurrentSegmentReader();
        LogSegmentEntryReader entries = current == null ? null : current.getEntryReader();
        return entries != null && entries.hasCaughtUpOnInprogress() ? entries.getSegment().getLogSegmentId() : null;
    }
}
