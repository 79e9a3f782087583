// Kafka Streams counts words, and resumes after a restart without its state: WordCount HOST:PORT [SCENARIO..]

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

public class WordCount {
    static final Duration WAIT = Duration.ofSeconds(60);
    static final List<String> LINES = List.of("the quick brown fox", "jumps over the lazy dog", "The dog sleeps", "fox and dog");

    final String address, name;
    final Admin admin;

    WordCount(String address, String guarantee) {
        this.address = address;
        this.name = "streams." + guarantee + "." + ProcessHandle.current().pid() + "." + System.nanoTime() % 1_000_000;
        this.admin = Admin.create(Map.of("bootstrap.servers", address));
    }

    Topology topology() {
        var builder = new StreamsBuilder();
        builder.stream(name + ".lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.toLowerCase().split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .to(name + ".counts", Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    KafkaStreams start(String guarantee, Path state) {
        var config = new Properties();
        config.put("bootstrap.servers", address);
        config.put("application.id", name + ".app");
        config.put("processing.guarantee", guarantee);
        config.put("state.dir", state.toString());
        config.put("commit.interval.ms", 200);
        config.put("num.stream.threads", 2);
        config.put("replication.factor", 1);
        config.put("consumer.auto.offset.reset", "earliest");
        config.put("consumer.heartbeat.interval.ms", 500);
        config.put("consumer.session.timeout.ms", 10_000);
        var streams = new KafkaStreams(topology(), config);
        streams.start();
        return streams;
    }

    void produce(int rounds) throws Exception {
        try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", address), new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < rounds; i++) {
                for (var line : LINES) producer.send(new ProducerRecord<>(name + ".lines", i % 2, null, line));
            }
            producer.flush();
        }
    }

    /** Returns the counts after {@code rounds} rounds of the lines. */
    static Map<String, Long> expected(int rounds) {
        var counts = new TreeMap<String, Long>();
        for (var line : LINES) {
            for (var word : line.toLowerCase().split(" ")) counts.merge(word, (long) rounds, Long::sum);
        }
        return counts;
    }

    /** Reads the counts until they are the expected ones, and checks that no count ever decreases. */
    void await(Map<String, Long> expected) {
        Map<String, Object> options = Map.of("bootstrap.servers", address, "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(options, new StringDeserializer(), new LongDeserializer())) {
            var partitions = List.of(new TopicPartition(name + ".counts", 0), new TopicPartition(name + ".counts", 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var counts = new TreeMap<String, Long>();
            for (long end = System.nanoTime() + WAIT.toNanos(); !counts.equals(expected);) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    Long before = counts.put(record.key(), record.value());
                    if (before != null && before > record.value()) {
                        throw new AssertionError("the count of " + record.key() + " goes from " + before + " to " + record.value());
                    }
                }
                if (System.nanoTime() > end) throw new AssertionError("not within " + WAIT + ": the counts are " + counts + ", not " + expected);
            }
        }
    }

    static void remove(Path directory) throws Exception {
        try (var files = Files.walk(directory)) {
            for (var file : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        }
    }

    void run(String guarantee) throws Exception {
        admin.createTopics(List.of(new NewTopic(name + ".lines", 2, (short) 1), new NewTopic(name + ".counts", 2, (short) 1))).all().get();
        var state = Files.createTempDirectory("word-count");
        produce(50);
        try (var streams = start(guarantee, state)) {
            await(expected(50));
            produce(50);
            await(expected(100));
        }
        // The state is in the changelog topic of the broker.
        remove(state);
        produce(20);
        try (var streams = start(guarantee, Files.createDirectories(state))) {
            await(expected(120));
        }
        remove(state);
    }

    public static void main(String[] args) {
        var guarantees = new LinkedHashMap<String, String>();
        guarantees.put("word_count_at_least_once", "at_least_once");
        guarantees.put("word_count_exactly_once", "exactly_once_v2");
        var wanted = args.length > 1 ? List.of(args).subList(1, args.length) : List.copyOf(guarantees.keySet());
        if (args.length == 0 || !guarantees.keySet().containsAll(wanted)) {
            System.err.println("usage: WordCount HOST:PORT [SCENARIO..], of " + String.join(" ", guarantees.keySet()));
            System.exit(2);
        }
        System.out.println("client streams " + AppInfoParser.getVersion());
        boolean passed = true;
        for (var scenario : wanted) {
            long begin = System.nanoTime();
            var count = new WordCount(args[0], guarantees.get(scenario));
            try {
                count.run(guarantees.get(scenario));
                System.out.printf("ok %s (%.1f s)%n", scenario, (System.nanoTime() - begin) / 1e9);
            } catch (Throwable e) {
                if (System.getenv("COMPAT_TRACE") != null) e.printStackTrace();
                System.out.println("FAILED " + scenario + ": " + String.valueOf(e.getMessage()).replaceAll("\\s+", " "));
                passed = false;
            }
            count.admin.close(Duration.ZERO);
        }
        System.exit(passed ? 0 : 1);
    }
}
