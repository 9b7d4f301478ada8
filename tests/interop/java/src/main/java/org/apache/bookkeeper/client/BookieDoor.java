package org.apache.bookkeeper.client;

import org.apache.bookkeeper.proto.BookieClient;

/**
 * A door to the part of BookKeeper's client that talks to one bookie at a time. It stands in BookKeeper's own package
 * because that part is visible nowhere else.
 */
public final class BookieDoor {
    private BookieDoor() {
    }

    public static BookieClient of(BookKeeper client) {
        return client.getBookieClient();
    }

    public static boolean speaksV2(BookKeeper client) {
        return client.getConf().getUseV2WireProtocol();
    }
}
