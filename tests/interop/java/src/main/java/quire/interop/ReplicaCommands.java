package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.util.ReferenceCounted;
import java.io.IOException;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookieDoor;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieClient;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** Requests to one bookie, as Java's client sends them: what each of them holds, and what it refuses. */
final class ReplicaCommands {
    private final LedgerClients clients;

    ReplicaCommands(LedgerClients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, Peer.Command> commands) {
        commands.put("replica.read", this::read);
        commands.put("replica.batch_read", this::batchRead);
        commands.put("replica.add", this::add);
        commands.put("replica.read_lac", this::readLac);
        commands.put("replica.write_lac", this::writeLac);
        commands.put("replica.force", arguments -> {
            CompletableFuture<String> answer = new CompletableFuture<>();
            bookies(arguments).forceLedger(bookie(arguments), ledger(arguments),
                    (code, ledger, from, context) -> answer.complete(name(code)), null);
            return LedgerClients.await(answer);
        });
        commands.put("replica.entries", arguments -> {
            AvailabilityOfEntriesOfLedger held = LedgerClients.await(
                    bookies(arguments).getListOfEntriesOfLedger(bookie(arguments), ledger(arguments)));
            List<Long> found = new ArrayList<>();
            for (long entry = 0; found.size() < held.getTotalNumOfAvailableEntries(); entry++) {
                if (held.isEntryAvailable(entry)) {
                    found.add(entry);
                }
            }
            return found;
        });
        commands.put("replica.info", arguments -> {
            CompletableFuture<Object> answer = new CompletableFuture<>();
            bookies(arguments).getBookieInfo(bookie(arguments), arguments.get("requested").asLong(),
                    (code, info, context) -> answer.complete(code == BKException.Code.OK
                            ? List.of(name(code), info.getTotalDiskSpace(), info.getFreeDiskSpace())
                            : List.of(name(code))), null);
            return LedgerClients.await(answer);
        });
    }

    private BookieClient bookies(JsonNode arguments) {
        return BookieDoor.of(clients.client(arguments));
    }

    private static BookieId bookie(JsonNode arguments) {
        return BookieId.parse(arguments.get("bookie").asText());
    }

    private static long ledger(JsonNode arguments) {
        return arguments.get("ledger").asLong();
    }

    private static long entry(JsonNode arguments) {
        return arguments.get("entry").asLong();
    }

    /** The name of the exception that a code stands for in Java's client. */
    private static String name(int code) {
        return code == BKException.Code.OK ? "OK" : BKException.create(code).getClass().getSimpleName();
    }

    private static byte[] key(JsonNode arguments) throws IOException {
        return arguments.get("key").binaryValue();
    }

    /** What came with an answer. Java's client has an empty buffer or none where nothing came. */
    private static byte[] bytes(ByteBuf buffer) {
        return buffer == null ? new byte[0] : ByteBufUtil.getBytes(buffer);
    }

    /** With a key, a read that fences. */
    private Map<String, Object> read(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();
        boolean fence = !arguments.get("key").isNull();
        bookies(arguments).readEntry(bookie(arguments), ledger(arguments), entry(arguments),
                (code, ledger, entry, buffer, context) ->
                        answer.complete(Map.of("code", name(code), "bytes", bytes(buffer))),
                null, fence ? BookieProtocol.FLAG_DO_FENCING : BookieProtocol.FLAG_NONE,
                fence ? key(arguments) : null);
        return LedgerClients.await(answer);
    }

    private Map<String, Object> batchRead(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();
        bookies(arguments).batchReadEntries(bookie(arguments), ledger(arguments), entry(arguments),
                arguments.get("count_max").asInt(), arguments.get("bytes_max").asLong(),
                (code, ledger, first, buffers, context) -> {
                    List<byte[]> found = new ArrayList<>();
                    for (int index = 0; buffers != null && index < buffers.size(); index++) {
                        found.add(bytes(buffers.getBuffer(index)));
                    }
                    answer.complete(Map.of("code", name(code), "entries", found));
                }, null, BookieProtocol.FLAG_NONE);
        return LedgerClients.await(answer);
    }

    private String add(JsonNode arguments) throws Exception {
        CompletableFuture<String> answer = new CompletableFuture<>();
        int flags = arguments.get("recovery").asBoolean()
                ? BookieProtocol.FLAG_RECOVERY_ADD : BookieProtocol.FLAG_NONE;
        ByteBuf payload = Unpooled.wrappedBuffer(arguments.get("payload").binaryValue());
        ReferenceCounted packet = digests(arguments).computeDigestAndPackageForSending(entry(arguments),
                arguments.get("lac").asLong(), payload.readableBytes(), payload, key(arguments), flags);
        bookies(arguments).addEntry(bookie(arguments), ledger(arguments), key(arguments), entry(arguments), packet,
                (code, ledger, entry, from, context) -> answer.complete(name(code)), null, flags, false,
                WriteFlag.NONE);
        return LedgerClients.await(answer);
    }

    /** What packs an entry for the wire; the bookie does not look at the digest. */
    private DigestManager digests(JsonNode arguments) throws GeneralSecurityException {
        // The class of the number that this asks for has moved between releases, so it is not named here.
        return DigestManager.instantiate(ledger(arguments), new byte[0],
                DigestType.toProtoDigestType(DigestType.CRC32C), UnpooledByteBufAllocator.DEFAULT,
                BookieDoor.speaksV2(clients.client(arguments)));
    }

    private Map<String, Object> readLac(JsonNode arguments) throws Exception {
        CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();
        bookies(arguments).readLac(bookie(arguments), ledger(arguments), (code, ledger, lac, last, context) -> {
            answer.complete(Map.of("code", name(code), "lac", bytes(lac), "last_entry", bytes(last)));
        }, null);
        return LedgerClients.await(answer);
    }

    private String writeLac(JsonNode arguments) throws Exception {
        CompletableFuture<String> answer = new CompletableFuture<>();
        long lac = arguments.get("lac").asLong();
        bookies(arguments).writeLac(bookie(arguments), ledger(arguments), key(arguments), lac,
                digests(arguments).computeDigestAndPackageForSendingLac(lac),
                (code, ledger, from, context) -> answer.complete(name(code)), null);
        return LedgerClients.await(answer);
    }
}
