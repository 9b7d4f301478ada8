package org.apache.bookkeeper.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.versioning.Versioned;

/**
 * A door to the loop through which all of BookKeeper changes ledger metadata. It stands in BookKeeper's own package
 * because the loop is visible nowhere else.
 */
public final class UpdateLoop {
    private UpdateLoop() {
    }

    /** Run the loop from what this client last knew, which may be out of date: then the first write is refused. */
    public static CompletableFuture<Versioned<LedgerMetadata>> run(LedgerManager ledgers, long ledger,
            Versioned<LedgerMetadata> known, Predicate<LedgerMetadata> needed, UnaryOperator<LedgerMetadata> change) {
        AtomicReference<Versioned<LedgerMetadata>> local = new AtomicReference<>(known);
        return new MetadataUpdateLoop(ledgers, ledger, local::get, needed::test, change::apply, local::compareAndSet)
                .run();
    }
}
