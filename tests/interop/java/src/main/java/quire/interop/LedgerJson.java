package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.LedgerMetadataUtils;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;

/** Ledger metadata as JSON, field by field; bytes as base64. */
final class LedgerJson {
    private LedgerJson() {
    }

    static Map<String, Object> write(LedgerMetadata metadata) {
        List<Object> fragments = new ArrayList<>();
        metadata.getAllEnsembles().forEach((first, ensemble) ->
                fragments.add(List.of(first, ensemble.stream().map(BookieId::toString).toList())));
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("format_version", metadata.getMetadataFormatVersion());
        facts.put("quorum", List.of(
                metadata.getEnsembleSize(), metadata.getWriteQuorumSize(), metadata.getAckQuorumSize()));
        facts.put("state", metadata.getState().name());
        facts.put("last_entry_id", metadata.getLastEntryId());
        facts.put("length", metadata.getLength());
        facts.put("fragments", fragments);
        facts.put("digest", metadata.hasPassword() ? metadata.getDigestType().name() : null);
        facts.put("password", metadata.hasPassword() ? metadata.getPassword() : null);
        facts.put("ctime_stored", LedgerMetadataUtils.shouldStoreCtime(metadata));
        facts.put("ctime_ms", metadata.getCtime());
        facts.put("custom", metadata.getCustomMetadata());
        facts.put("ctoken", metadata.getCToken());
        return facts;
    }

    static LedgerMetadata read(long ledger, JsonNode facts) throws IOException {
        LedgerMetadataBuilder builder = LedgerMetadataBuilder.create()
                .withId(ledger)
                .withMetadataFormatVersion(facts.get("format_version").asInt())
                .withEnsembleSize(facts.get("quorum").get(0).asInt())
                .withWriteQuorumSize(facts.get("quorum").get(1).asInt())
                .withAckQuorumSize(facts.get("quorum").get(2).asInt())
                .withCToken(facts.get("ctoken").asLong());
        for (JsonNode fragment : facts.get("fragments")) {
            List<BookieId> ensemble = new ArrayList<>();
            fragment.get(1).forEach(bookie -> ensemble.add(BookieId.parse(bookie.asText())));
            builder.newEnsembleEntry(fragment.get(0).asLong(), ensemble);
        }
        switch (facts.get("state").asText()) {
            case "OPEN" -> { }
            case "IN_RECOVERY" -> builder.withInRecoveryState();
            case "CLOSED" -> builder.withClosedState()
                    .withLastEntryId(facts.get("last_entry_id").asLong())
                    .withLength(facts.get("length").asLong());
            default -> throw new IllegalArgumentException("no such state: " + facts.get("state"));
        }
        if (!facts.get("password").isNull()) {
            builder.withPassword(facts.get("password").binaryValue())
                    .withDigestType(DigestType.valueOf(facts.get("digest").asText()));
        }
        if (facts.get("ctime_stored").asBoolean()) {
            builder.withCreationTime(facts.get("ctime_ms").asLong()).storingCreationTime(true);
        }
        Map<String, byte[]> custom = new LinkedHashMap<>();
        for (Map.Entry<String, JsonNode> entry : facts.get("custom").properties()) {
            custom.put(entry.getKey(), entry.getValue().binaryValue());
        }
        return builder.withCustomMetadata(custom).build();
    }
}
