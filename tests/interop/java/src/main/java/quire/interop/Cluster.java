package quire.interop;

import java.net.URI;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.LayoutManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.stats.NullStatsLogger;

/** One cluster as a Java bookie and a Java client see it, each with a ZooKeeper session of its own. */
final class Cluster implements AutoCloseable {
    final RegistrationManager registrations;
    final RegistrationClient bookies;
    final LayoutManager layouts;
    final LedgerManager ledgers;
    final LedgerIdGenerator ids;
    final WatchedBookies watched = new WatchedBookies();

    private final MetadataBookieDriver bookieSide;
    private final MetadataClientDriver clientSide;
    private final ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();

    Cluster(String uri, int sessionTimeoutMs) throws Exception {
        ServerConfiguration serverConfiguration = new ServerConfiguration();
        serverConfiguration.setMetadataServiceUri(uri);
        serverConfiguration.setZkTimeout(sessionTimeoutMs);
        ClientConfiguration clientConfiguration = new ClientConfiguration();
        clientConfiguration.setMetadataServiceUri(uri);
        clientConfiguration.setZkTimeout(sessionTimeoutMs);
        bookieSide = MetadataDrivers.getBookieDriver(URI.create(uri));
        clientSide = MetadataDrivers.getClientDriver(URI.create(uri));
        try {
            bookieSide.initialize(serverConfiguration, NullStatsLogger.INSTANCE);
            clientSide.initialize(clientConfiguration, scheduler, NullStatsLogger.INSTANCE, Optional.empty());
            layouts = bookieSide.getLayoutManager();
            ledgers = clientSide.getLedgerManagerFactory().newLedgerManager();
            ids = clientSide.getLedgerManagerFactory().newLedgerIdGenerator();
            registrations = bookieSide.createRegistrationManager();
            bookies = clientSide.getRegistrationClient();
        } catch (Exception | Error error) {
            closeDrivers();
            throw error;
        }
    }

    @Override
    public void close() throws Exception {
        ledgers.close();
        ids.close();
        registrations.close();
        closeDrivers();
    }

    private void closeDrivers() {
        clientSide.close();
        bookieSide.close();
        scheduler.shutdownNow();
    }
}
