package quire.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.Queue;
import org.apache.distributedlog.api.AsyncLogReader;

/**
 * A reader of Java's that stands still for ever, though it has been given all that it asked for.
 *
 * <p>In BKLogSegmentEntryReader.run (4.18.0) a thread that finds no request writes afterwards that nobody is at work. A
 * request that comes in between sees somebody at work, and wakes nobody. Where all entries of the segment are fetched,
 * nothing else does either. A thread that was held up there by a debugger made five of five readers stand still, on
 * Apache's own bookies.
 */
final class LostWakeUpException extends Exception {
    private static final long serialVersionUID = 1L;

    LostWakeUpException(String message) {
        super(message);
    }

    /** Whether a request waits, what it waits for is there, and nobody is at work: asked when nothing came for long. */
    static boolean isWhy(AsyncLogReader reader) throws ReflectiveOperationException {
        Object readAhead = valueOf(reader, "readAheadReader");
        Object segment = readAhead == null ? null : valueOf(readAhead, "currentSegmentReader");
        Object entries = segment == null ? null : valueOf(segment, "reader");
        if (entries == null || (long) valueOf(entries, "scheduleCount") != 0) {
            return false;
        }
        Object requests = valueOf(entries, "readQueue");
        synchronized (requests) {
            if (((Collection<?>) requests).isEmpty()) {
                return false;
            }
        }
        Object next = ((Queue<?>) valueOf(entries, "readAheadEntries")).peek();
        return next == null ? isAtEnd(entries) : (boolean) valueOf(next, "done");
    }

    private static boolean isAtEnd(Object entries) throws ReflectiveOperationException {
        Method isAtEnd = entries.getClass().getDeclaredMethod("isEndOfLogSegment");
        isAtEnd.setAccessible(true);
        return (boolean) isAtEnd.invoke(entries);
    }

    private static Object valueOf(Object owner, String name) throws ReflectiveOperationException {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}
