import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.BinaryJedisPubSub;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.PipeliningBase;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.XAddParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.resps.StreamEntry;
import redis.clients.jedis.resps.StreamPendingSummary;
import redis.clients.jedis.resps.Tuple;

/** Driver of Jedis: any command. Commands whose replies have a special shape use the library's methods. drivers.py
 * describes the lines, suite.py the calls. */
public final class Client {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HostAndPort ADDRESS = HostAndPort.from(System.getenv("COMPAT_REDIS"));

    private final JedisPool first = pool(2, 0, null);
    private JedisPool pool = first;
    private Listener listener;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Client client = new Client();
        String jar = Jedis.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        String version = jar.replaceAll(".*jedis-|\\.jar", "");
        out.println(JSON.writeValueAsString(Map.of("name", "jedis", "version", version)));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            JsonNode asked = JSON.readTree(line);
            out.println(JSON.writeValueAsString(client.answer(asked.get("call").asText(), asked.get("with"))));
        }
        System.exit(0);
    }

    private Map<String, Object> answer(String name, JsonNode with) {
        try {
            Map<String, Object> value = new LinkedHashMap<>();
            value.put("value", plain(call(name, with)));
            return Map.of("ok", value);
        } catch (Exception e) {
            String message = String.valueOf(e.getMessage());
            return Map.of("error", Map.of("names", List.of(e.getClass().getSimpleName()), "message", message));
        }
    }

    /** Opens a pool of one connection, because scenarios query its id. The suite ends commands that block. */
    private static JedisPool pool(int protocol, int db, String name) {
        var config = DefaultJedisClientConfig.builder()
                .protocol(protocol == 3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2)
                .database(db).clientName(name).socketTimeoutMillis(0).blockingSocketTimeoutMillis(0).build();
        JedisPool pool = new JedisPool(ADDRESS, config);
        pool.setMaxTotal(1);
        return pool;
    }

    private Object call(String name, JsonNode with) throws Exception {
        switch (name) {
            case "connect":
                String named = with.get("name").asText();
                pool = pool(with.get("protocol").asInt(), with.get("db").asInt(), named.isEmpty() ? null : named);
                return null;
            case "reconnects":
                return null;
            case "subscribe":
                listener = new Listener(words(with.get("channels")), words(with.get("patterns")));
                return null;
            case "messages":
                List<Object> found = new ArrayList<>();
                while (found.size() < with.get("count").asInt()) {
                    found.add(listener.heard.take());
                }
                return found;
            case "reset":
                reset();
                return null;
            default:
        }
        try (Jedis jedis = pool.getResource()) {
            switch (name) {
                case "pipeline":
                    try (var pipeline = jedis.pipelined()) {
                        fill(pipeline, with.get("commands"));
                        return pipeline.syncAndReturnAll();
                    }
                case "transaction":
                    return transaction(jedis, with.get("commands"));
                case "watched":
                    jedis.watch(words(with.get("keys")));
                    if (!with.get("rival").isNull()) {
                        try (Jedis other = new Jedis(ADDRESS)) {
                            byte[][] words = words(with.get("rival"));
                            other.sendCommand(command(words[0]), rest(words, 1));
                        }
                    }
                    return transaction(jedis, with.get("commands"));
                case "scan":
                    return scan(jedis, with);
                default:
                    return command(jedis, name, words(with.get("args")));
            }
        }
    }

    private static Object transaction(Jedis jedis, JsonNode commands) {
        try (AbstractTransaction transaction = jedis.multi()) {
            fill(transaction, commands);
            return transaction.exec();
        }
    }

    private static void fill(PipeliningBase to, JsonNode commands) {
        for (JsonNode each : commands) {
            byte[][] words = words(each);
            if (to instanceof AbstractPipeline pipeline) {
                pipeline.sendCommand(command(words[0]), rest(words, 1));
            } else {
                ((AbstractTransaction) to).sendCommand(command(words[0]), rest(words, 1));
            }
        }
    }

    private static Object scan(Jedis jedis, JsonNode with) {
        ScanParams params = new ScanParams().match(bytes(with.get("match").asText())).count(with.get("count").asInt());
        List<byte[]> found = new ArrayList<>();
        byte[] cursor = ScanParams.SCAN_POINTER_START_BINARY;
        do {
            ScanResult<byte[]> page = jedis.scan(cursor, params);
            found.addAll(page.getResult());
            cursor = page.getCursorAsBytes();
        } while (!Arrays.equals(cursor, ScanParams.SCAN_POINTER_START_BINARY));
        return found;
    }

    /** Calls the library's method if the words have the form of its arguments. */
    private static Object command(Jedis jedis, String name, byte[][] words) {
        int last = words.length - 1;
        switch (name + words.length) {
            case "GET1":
                return jedis.get(words[0]);
            case "HGETALL1":
                return jedis.hgetAll(words[0]);
            case "SMEMBERS1":
                return jedis.smembers(words[0]);
            case "ZRANGE4":
                return jedis.zrangeWithScores(words[0], Long.parseLong(text(words[1])), Long.parseLong(text(words[2])));
            case "ZPOPMAX2":
                return jedis.zpopmax(words[0], Integer.parseInt(text(words[1])));
            case "XPENDING2":
                return jedis.xpending(text(words[0]), text(words[1]));
            case "XADD4", "XADD6":
                Map<byte[], byte[]> fields = new LinkedHashMap<>();
                for (int at = 2; at < words.length; at += 2) {
                    fields.put(words[at], words[at + 1]);
                }
                return jedis.xadd(words[0], XAddParams.xAddParams().id(words[1]), fields);
            default:
        }
        switch (name) {
            case "BLPOP":
                return jedis.blpop(Double.parseDouble(text(words[last])), Arrays.copyOf(words, last));
            case "BZPOPMIN":
                return jedis.bzpopmin(Double.parseDouble(text(words[last])), Arrays.copyOf(words, last));
            case "XREADGROUP":
                return read(jedis, words);
            default:
                return jedis.sendCommand(command(bytes(name)), words);
        }
    }

    private static Object read(Jedis jedis, byte[][] words) {
        XReadGroupParams params = XReadGroupParams.xReadGroupParams();
        int at = 3;
        for (; !text(words[at]).equals("STREAMS"); at += 2) {
            int number = Integer.parseInt(text(words[at + 1]));
            params = text(words[at]).equals("COUNT") ? params.count(number) : params.block(number);
        }
        String id = text(words[at + 2]);
        StreamEntryID from = id.equals(">") ? StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY : new StreamEntryID(id);
        return jedis.xreadGroup(text(words[1]), text(words[2]), params, Map.of(text(words[at + 1]), from));
    }

    private void reset() throws InterruptedException {
        if (listener != null) {
            listener.close();
            listener = null;
        }
        if (pool != first) {
            pool.close();
            pool = first;
        }
    }

    /** Listens in a separate thread, as the library requires. */
    private static final class Listener extends BinaryJedisPubSub {
        final BlockingQueue<List<Object>> heard = new LinkedBlockingQueue<>();
        private final CountDownLatch confirmed;
        private final Thread thread;

        Listener(byte[][] channels, byte[][] patterns) throws InterruptedException {
            confirmed = new CountDownLatch(channels.length + patterns.length);
            thread = new Thread(() -> {
                var config = DefaultJedisClientConfig.builder().socketTimeoutMillis(0).build();
                try (Jedis jedis = new Jedis(ADDRESS, config)) {
                    if (channels.length > 0) {
                        jedis.subscribe(this, channels);
                    } else {
                        jedis.psubscribe(this, patterns);
                    }
                }
            });
            thread.start();
            if (channels.length > 0 && patterns.length > 0) {
                while (confirmed.getCount() > patterns.length) {
                    Thread.sleep(1);
                }
                psubscribe(patterns);
            }
            confirmed.await();
        }

        void close() throws InterruptedException {
            if (getSubscribedChannels() > 0) {
                unsubscribe();
                punsubscribe();
            }
            thread.join();
        }

        @Override
        public void onSubscribe(byte[] channel, int count) {
            confirmed.countDown();
        }

        @Override
        public void onPSubscribe(byte[] pattern, int count) {
            confirmed.countDown();
        }

        @Override
        public void onMessage(byte[] channel, byte[] payload) {
            heard.add(Arrays.asList(channel, payload, null));
        }

        @Override
        public void onPMessage(byte[] pattern, byte[] channel, byte[] payload) {
            heard.add(Arrays.asList(channel, payload, pattern));
        }
    }

    private static ProtocolCommand command(byte[] name) {
        return () -> name;
    }

    private static byte[][] words(JsonNode texts) {
        byte[][] words = new byte[texts.size()][];
        for (int at = 0; at < words.length; at++) {
            words[at] = bytes(texts.get(at).asText());
        }
        return words;
    }

    private static byte[][] rest(byte[][] words, int from) {
        return Arrays.copyOfRange(words, from, words.length);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.ISO_8859_1);
    }

    /** Converts a value to types of JSON. In its texts each character is one byte. */
    private static Object plain(Object value) {
        if (value instanceof byte[] bytes) {
            return text(bytes);
        } else if (value instanceof Exception e) {
            return Map.of("error", String.valueOf(e.getMessage()));
        } else if (value instanceof Tuple tuple) {
            return List.of(plain(tuple.getBinaryElement()), tuple.getScore());
        } else if (value instanceof StreamEntry entry) {
            return List.of(entry.getID().toString(), entry.getFields());
        } else if (value instanceof StreamPendingSummary summary) {
            return List.of(summary.getTotal(), summary.getMinId().toString(), summary.getMaxId().toString(),
                    plain(new ArrayList<>(summary.getConsumerMessageCount().entrySet())));
        } else if (value instanceof Collection<?> all) {
            List<Object> found = new ArrayList<>();
            all.forEach(each -> found.add(plain(each)));
            return found;
        } else if (value instanceof Map<?, ?> map) {
            Map<Object, Object> found = new LinkedHashMap<>();
            map.forEach((key, each) -> found.put(plain(key), plain(each)));
            return found;
        } else if (value instanceof Map.Entry<?, ?> entry) {
            // A pop from sorted sets returns the key, a member and its score.
            List<Object> found = new ArrayList<>(List.of(plain(entry.getKey())));
            if (entry.getValue() instanceof Tuple tuple) {
                found.addAll((List<?>) plain(tuple));
            } else {
                found.add(plain(entry.getValue()));
            }
            return found;
        }
        return value;
    }
}
