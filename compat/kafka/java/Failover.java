// Java client of Kafka under leader kills: an idempotent producer, a consumer group, and transactions. The history is
// described in xtask/src/compat/cluster/history.rs: Failover HISTORY HOST:PORT..

import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.AppInfoParser;

public class Failover {
    static final int PARTITIONS = 3, KEYS = 8, PERIOD_MS = 20;
    static final String LOG = "\"log\":true,\"numbered\":true,\"ordered\":true";
    static final CountDownLatch ending = new CountDownLatch(1);
    static final Map<String, CountDownLatch> produced =
        Map.of("idempotent", new CountDownLatch(1), "tx-in", new CountDownLatch(1));
    static Writer history;
    static String servers;

    interface Workload {
        void run() throws Exception;
    }

    static String topic(String stream) { return "java-" + stream; }

    // The history.

    static synchronized void add(String op, String stream, String rest) {
        try {
            history.write("{\"op\":\"" + op + "\",\"stream\":\"" + stream + "\"" + (rest.isEmpty() ? "" : "," + rest) + "}\n");
            history.flush();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    static void sent(String stream, String item, boolean ok) {
        add("sent", stream, item(item) + ",\"outcome\":\"" + (ok ? "ok" : "unknown") + "\",\"at\":" + System.currentTimeMillis());
    }

    static void got(String stream, String reader, ConsumerRecord<String, String> record) {
        add("got", stream, "\"reader\":\"" + reader + "\"," + lane(record.partition())
            + ",\"id\":\"" + record.offset() + "\"," + item(record.value()));
    }

    static void committed(String op, String stream, TopicPartition at, long next) {
        add(op, stream, lane(at.partition()) + ",\"next\":" + next + ",\"at\":" + System.currentTimeMillis());
    }

    static void error(String stream, Throwable error) {
        var text = String.valueOf(error).replaceAll("[^ -~]|[\"\\\\]", " ");
        add("error", stream, "\"error\":\"" + text.substring(0, Math.min(text.length(), 300)) + "\"");
    }

    static String item(String item) {
        int at = item.lastIndexOf(':');
        return "\"producer\":\"" + item.substring(0, at) + "\",\"number\":" + item.substring(at + 1);
    }

    static String lane(int partition) { return "\"lane\":\"" + partition + "\""; }

    // Clients.

    static Map<String, Object> options(Object... pairs) {
        var options = new HashMap<String, Object>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < pairs.length; i += 2) options.put((String) pairs[i], pairs[i + 1]);
        return options;
    }

    static Consumer<String, String> consumer(Object... pairs) {
        var options = options("auto.offset.reset", "earliest", "enable.auto.commit", false, "isolation.level", "read_committed");
        options.putAll(options(pairs));
        return new KafkaConsumer<>(options, new StringDeserializer(), new StringDeserializer());
    }

    static Producer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(options(pairs), new StringSerializer(), new StringSerializer());
    }

    static List<TopicPartition> partitions(String topic) {
        var all = new ArrayList<TopicPartition>();
        for (int i = 0; i < PARTITIONS; i++) all.add(new TopicPartition(topic, i));
        return all;
    }

    /** Repeats a call after errors that Kafka documents as retriable (RetriableException). */
    static <T> T repeat(String stream, Callable<T> call) throws Exception {
        while (true) {
            try {
                return call.call();
            } catch (RetriableException e) {
                error(stream, e);
                Thread.sleep(200);
            }
        }
    }

    static boolean isComplete(Map<TopicPartition, Long> done, Map<TopicPartition, Long> ends) {
        return ends != null && ends.entrySet().stream().allMatch(e -> done.getOrDefault(e.getKey(), 0L) >= e.getValue());
    }

    // Workloads.

    static void produce(String stream) throws Exception {
        int number = 0;
        for (int life = 0; ending.getCount() > 0; life++) {
            // An error of a record may leave a gap that the producer does not close: another one continues.
            var failed = new AtomicBoolean();
            var name = "p" + life;
            try (var producer = producer("linger.ms", 5, "enable.idempotence", true, "acks", "all")) {
                while (!failed.get() && !ending.await(PERIOD_MS, TimeUnit.MILLISECONDS)) {
                    var item = name + ":" + number;
                    producer.send(new ProducerRecord<>(topic(stream), "k" + number % KEYS, item), (metadata, e) -> {
                        sent(stream, item, e == null);
                        if (e != null) {
                            error(stream, e);
                            failed.set(true);
                        }
                    });
                    number++;
                }
                producer.flush();
            }
        }
        produced.get(stream).countDown();
    }

    /** Two members of a group, which commit after each batch. */
    static void consume(Consumer<String, String> consumer, Map<TopicPartition, Long> done) throws Exception {
        Map<TopicPartition, Long> ends = null;
        var topic = topic("idempotent");
        consumer.subscribe(List.of(topic));
        while (!isComplete(done, ends)) {
            if (ends == null && produced.get("idempotent").getCount() == 0) {
                ends = repeat("group", () -> consumer.endOffsets(partitions(topic)));
            }
            var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
            try {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    got("group", "group", record);
                    offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                if (offsets.isEmpty()) continue;
                consumer.commitSync(offsets);
            } catch (RetriableException | CommitFailedException e) {
                // The partitions may have been assigned again: the next batch commits.
                error("group", e);
                continue;
            }
            offsets.forEach((at, offset) -> {
                committed("committed", "group", at, offset.offset());
                done.merge(at, offset.offset(), Math::max);
            });
        }
    }

    static void member(Map<TopicPartition, Long> done) throws Exception {
        try (var consumer = consumer("group.id", "java", "group.protocol", "consumer")) {
            consume(consumer, done);
        }
    }

    static void positions() throws Exception {
        try (var consumer = consumer("group.id", "java")) {
            var all = repeat("group", () -> consumer.committed(new HashSet<>(partitions(topic("idempotent")))));
            all.forEach((at, offset) -> committed("position", "group", at, offset == null ? 0 : offset.offset()));
        }
    }

    /** Reads a topic, writes its records to another one, and commits both in transactions. */
    static void transform() throws Exception {
        Map<TopicPartition, Long> ends = null;
        var done = new HashMap<TopicPartition, Long>();
        var producer = transactional();
        try (var consumer = consumer("group.id", "java-tx")) {
            consumer.subscribe(List.of(topic("tx-in")));
            while (!isComplete(done, ends)) {
                if (ends == null && produced.get("tx-in").getCount() == 0) {
                    ends = repeat("tx-out", () -> consumer.endOffsets(partitions(topic("tx-in"))));
                }
                var records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                try {
                    done.putAll(transaction(producer, consumer, records));
                } catch (KafkaException e) {
                    error("tx-out", e);
                    producer = abort(producer, e);
                    rewind(consumer);
                }
            }
        }
        producer.close();
    }

    static Producer<String, String> transactional() throws Exception {
        var producer = producer("transactional.id", "java");
        repeat("tx-out", () -> { producer.initTransactions(); return null; });
        return producer;
    }

    /** The documentation of KafkaProducer: errors of these kinds end the producer, after all others one aborts. */
    static Producer<String, String> abort(Producer<String, String> producer, KafkaException cause) throws Exception {
        try {
            if (!(cause instanceof ProducerFencedException || cause instanceof OutOfOrderSequenceException
                || cause instanceof AuthorizationException || cause instanceof ApplicationRecoverableException)) {
                repeat("tx-out", () -> { producer.abortTransaction(); return null; });
                return producer;
            }
        } catch (KafkaException e) {
            error("tx-out", e);
        }
        producer.close(Duration.ZERO);
        return transactional();
    }

    static Map<TopicPartition, Long> transaction(
        Producer<String, String> producer, Consumer<String, String> consumer, ConsumerRecords<String, String> records
    ) throws Exception {
        producer.beginTransaction();
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        var next = new HashMap<TopicPartition, Long>();
        for (var record : records) {
            producer.send(new ProducerRecord<>(topic("tx-out"), record.key(), record.value()));
            var at = new TopicPartition(record.topic(), record.partition());
            offsets.put(at, new OffsetAndMetadata(record.offset() + 1));
            next.put(at, record.offset() + 1);
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        var ok = false;
        try {
            repeat("tx-out", () -> { producer.commitTransaction(); return null; });
            ok = true;
        } finally {
            for (var record : records) sent("tx-out", record.value(), ok);
        }
        return next;
    }

    static void rewind(Consumer<String, String> consumer) throws Exception {
        var committed = repeat("tx-out", () -> consumer.committed(consumer.assignment()));
        for (var each : committed.entrySet()) {
            if (each.getValue() == null) consumer.seekToBeginning(List.of(each.getKey()));
            else consumer.seek(each.getKey(), each.getValue());
        }
    }

    static void readBack(String stream, String... streams) throws Exception {
        try (var consumer = consumer()) {
            var all = partitions(topic(stream));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            // With read_committed, this is the end of what is committed.
            var ends = consumer.endOffsets(all);
            while (!ends.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) >= e.getValue())) {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    got(stream, "final", record);
                    for (var other : streams) got(other, "final", record);
                }
            }
        }
    }

    static void run(Workload... workloads) throws Exception {
        var failed = new AtomicBoolean();
        var threads = new ArrayList<Thread>();
        for (var workload : workloads) {
            threads.add(new Thread(() -> {
                try {
                    workload.run();
                } catch (Throwable e) {
                    e.printStackTrace();
                    failed.set(true);
                    // The other workloads may wait for this one.
                    System.exit(1);
                }
            }));
        }
        for (var thread : threads) thread.start();
        for (var thread : threads) thread.join();
        if (failed.get()) System.exit(1);
    }

    public static void main(String[] args) throws Exception {
        history = new OutputStreamWriter(new FileOutputStream(args[0], true), StandardCharsets.UTF_8);
        servers = String.join(",", Arrays.copyOfRange(args, 1, args.length));
        history.write("{\"op\":\"client\",\"version\":\"" + AppInfoParser.getVersion() + "\"}\n");
        var stdin = new Thread(() -> {
            try {
                System.in.transferTo(OutputStream.nullOutputStream());
            } catch (IOException e) {
                e.printStackTrace();
            }
            ending.countDown();
        });
        stdin.setDaemon(true);
        stdin.start();
        try (var admin = Admin.create(options())) {
            var topics = new ArrayList<NewTopic>();
            for (var stream : List.of("idempotent", "tx-in", "tx-out")) topics.add(new NewTopic(topic(stream), PARTITIONS, (short) 3));
            admin.createTopics(topics).all().get();
        }
        add("stream", "idempotent", LOG);
        add("stream", "group", "\"log\":true,\"numbered\":true,\"from\":\"idempotent\"");
        add("stream", "tx-in", LOG);
        add("stream", "tx-out", LOG + ",\"from\":\"tx-in\"");
        var done = new ConcurrentHashMap<TopicPartition, Long>();
        run(() -> produce("idempotent"), () -> member(done), () -> member(done), () -> produce("tx-in"), Failover::transform);
        positions();
        readBack("idempotent", "group");
        readBack("tx-in");
        readBack("tx-out");
        System.exit(0);
    }
}
