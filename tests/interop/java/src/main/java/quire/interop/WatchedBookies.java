package quire.interop;

import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Versioned;

/** What BookKeeper's listeners were told last about the two lists of bookies. Nothing here ever looks for itself. */
final class WatchedBookies {
    private Set<String> writable;
    private Set<String> readonly;

    void start(RegistrationClient client) throws Exception {
        client.watchWritableBookies(this::onWritable).get();
        client.watchReadOnlyBookies(this::onReadonly).get();
    }

    private synchronized void onWritable(Versioned<Set<BookieId>> told) {
        writable = Clusters.names(told.getValue());
        notifyAll();
    }

    private synchronized void onReadonly(Versioned<Set<BookieId>> told) {
        readonly = Clusters.names(told.getValue());
        notifyAll();
    }

    synchronized void await(TreeSet<String> wantedWritable, TreeSet<String> wantedReadonly, long withinMs)
            throws InterruptedException, TimeoutException {
        long deadline = System.nanoTime() + withinMs * 1_000_000;
        while (!wantedWritable.equals(writable) || !wantedReadonly.equals(readonly)) {
            long leftMs = (deadline - System.nanoTime()) / 1_000_000;
            if (leftMs <= 0) {
                throw new TimeoutException("last told: writable " + writable + ", readonly " + readonly);
            }
            wait(leftMs);
        }
    }
}
