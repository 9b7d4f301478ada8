package quire.interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Payloads that both sides can make: the hash of a seed and a number gives the length, and repeated the bytes. */
record Payloads(String seed, int bytesMin, int bytesMax) {
    static Payloads of(JsonNode arguments) {
        return new Payloads(arguments.get("seed").asText(), arguments.get("bytes_min").asInt(),
                arguments.get("bytes_max").asInt());
    }

    byte[] get(long number) {
        byte[] hash;
        try {
            hash = MessageDigest.getInstance("SHA-256")
                    .digest((seed + "/" + number).getBytes(StandardCharsets.UTF_8));
        } catch (NoSuchAlgorithmException missing) {
            throw new IllegalStateException(missing);
        }
        long drawn = ByteBuffer.wrap(hash).getInt() & 0xffffffffL;
        byte[] payload = new byte[bytesMin + (int) (drawn % (bytesMax - bytesMin + 1))];
        for (int at = 0; at < payload.length; at += hash.length) {
            System.arraycopy(hash, 0, payload, at, Math.min(hash.length, payload.length - at));
        }
        return payload;
    }
}
