// Java client of Kafka, with its newest protocols. The scenarios are those of suite.py: Client HOST:PORT [SCENARIO..]

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.AppInfoParser;

public class Client {
    static final int SCENARIO_SECONDS = 90;
    static final Duration WAIT = Duration.ofSeconds(30);
    /** Time without records after which no more are expected. */
    static final Duration QUIET = Duration.ofMillis(400);
    static final long START_MS = 1_700_000_000_000L;

    interface Scenario {
        void run(Client c) throws Exception;
    }

    interface Call {
        void run() throws Exception;
    }

    static class Skip extends RuntimeException {
        Skip(String why) { super(why); }
    }

    final String address, prefix;
    final Map<String, Object> security;
    final Admin admin;

    Client(String address, String prefix, Map<String, Object> security) {
        this.address = address;
        this.prefix = prefix;
        this.security = security;
        this.admin = Admin.create(options("default.api.timeout.ms", 30_000));
    }

    String name(String what) { return prefix + "." + what; }

    String topic() { return name("topic"); }

    Map<String, Object> options(Object... pairs) {
        var options = new HashMap<>(security);
        options.put("bootstrap.servers", address);
        for (int i = 0; i < pairs.length; i += 2) options.put((String) pairs[i], pairs[i + 1]);
        return options;
    }

    // Records.

    record Rec(String key, String value) {}

    static List<Rec> numbered(String tag, int begin, int count) {
        return IntStream.range(begin, begin + count).mapToObj(i -> new Rec("key-" + i % 7, tag + "-" + i)).toList();
    }

    static List<Rec> numbered(int count) { return numbered("value", 0, count); }

    static byte[] bytes(String text) { return text == null ? null : text.getBytes(StandardCharsets.UTF_8); }

    static String text(byte[] bytes) { return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8); }

    static List<ProducerRecord<byte[], byte[]>> records(String topic, int partition, List<Rec> records) {
        return records.stream().map(r -> new ProducerRecord<>(topic, partition, bytes(r.key), bytes(r.value))).toList();
    }

    static List<Rec> plain(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(r -> new Rec(text(r.key()), text(r.value()))).toList();
    }

    static List<Long> deliver(Producer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records) throws Exception {
        var sent = new ArrayList<Future<RecordMetadata>>();
        for (var record : records) sent.add(producer.send(record));
        producer.flush();
        var offsets = new ArrayList<Long>();
        for (var each : sent) offsets.add(each.get().offset());
        return offsets;
    }

    Producer<byte[], byte[]> producer(Object... pairs) {
        var options = options(pairs);
        options.putIfAbsent("max.request.size", 2_000_000);
        options.putIfAbsent("linger.ms", 5);
        return new KafkaProducer<>(options, new ByteArraySerializer(), new ByteArraySerializer());
    }

    List<Long> produce(List<ProducerRecord<byte[], byte[]>> records, Object... pairs) throws Exception {
        try (var producer = producer(pairs)) {
            return deliver(producer, records);
        }
    }

    List<Long> produce(List<Rec> records) throws Exception { return produce(records(topic(), 0, records)); }

    Consumer<byte[], byte[]> consumer(Object... pairs) {
        var options = options(pairs);
        options.putIfAbsent("auto.offset.reset", "earliest");
        options.put("enable.auto.commit", false);
        return new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static final long EARLIEST = -2, LATEST = -1;

    /** Reads at least {@code count} records, and more until none has arrived for {@code QUIET}. */
    List<ConsumerRecord<byte[], byte[]>> read(String topic, int count, int partition, long start, boolean committed) {
        try (var consumer = consumer("isolation.level", committed ? "read_committed" : "read_uncommitted")) {
            var at = new TopicPartition(topic, partition);
            consumer.assign(List.of(at));
            if (start == EARLIEST) consumer.seekToBeginning(List.of(at));
            else if (start == LATEST) consumer.seekToEnd(List.of(at));
            else consumer.seek(at, start);
            var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            until(count + " records", () -> {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
                return found.size() >= count;
            });
            consumer.poll(QUIET).forEach(found::add);
            return found;
        }
    }

    List<Rec> read(String topic, int count) { return plain(read(topic, count, 0, EARLIEST, false)); }

    List<Rec> committed(String topic, int count) { return plain(read(topic, count, 0, EARLIEST, true)); }

    void create(String topic, int partitions, String... configs) throws Exception {
        var values = new HashMap<String, String>();
        for (int i = 0; i < configs.length; i += 2) values.put(configs[i], configs[i + 1]);
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(values))).all().get();
        // The leaders are known a moment later.
        until("the topic exists", () -> partitions(topic) == partitions);
    }

    int partitions(String topic) throws Exception {
        try {
            return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        } catch (ExecutionException e) {
            if (error(e) == Errors.UNKNOWN_TOPIC_OR_PARTITION) return 0;
            throw e;
        }
    }

    // Checks.

    static void same(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) throw new AssertionError(what + " is " + brief(found) + ", not " + brief(expected));
    }

    static String brief(Object value) {
        var text = String.valueOf(value);
        return text.length() <= 300 ? text : text.substring(0, 200) + ".. (" + text.length() + " characters)";
    }

    static void until(String what, Callable<Boolean> holds) {
        try {
            for (long end = System.nanoTime() + WAIT.toNanos(); !holds.call(); Thread.sleep(20)) {
                if (System.nanoTime() > end) throw new AssertionError("not within " + WAIT + ": " + what);
            }
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new RuntimeException(e);
        }
    }

    static Errors error(Throwable e) {
        for (; e != null; e = e.getCause()) {
            if (e instanceof ApiException || e instanceof ProducerFencedException) return Errors.forException(e);
        }
        return Errors.NONE;
    }

    static void refused(String names, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException | KafkaException e) {
            if (!List.of(names.split("\\|")).contains(error(e).name())) throw new AssertionError("refused with " + e + ", not " + names);
            return;
        }
        throw new AssertionError("not refused, though it should be " + names);
    }

    // The scenarios.

    static void codec(Client c, String codec) throws Exception {
        c.create(c.topic(), 1);
        var text = "the same words again and again ".repeat(20);
        var sent = numbered(text, 0, 200);
        var records = records(c.topic(), 0, sent);
        for (int i = 0; i < 200; i++) records.get(i).headers().add("n", bytes("" + i));
        same(c.produce(records, "compression.type", codec), upTo(200), "the offsets");
        var found = c.read(c.topic(), 200, 0, EARLIEST, false);
        same(plain(found), sent, "the records read");
        for (int i = 0; i < 200; i++) same(text(found.get(i).headers().lastHeader("n").value()), "" + i, "a header");
    }

    static List<Long> upTo(int count) { return LongStream.range(0, count).boxed().toList(); }

    static byte[] allBytes() {
        var all = new byte[256];
        for (int i = 0; i < 256; i++) all[i] = (byte) i;
        return all;
    }

    static String shown(Iterable<Header> headers) {
        var out = new StringJoiner(" ");
        headers.forEach(h -> out.add(h.key() + "=" + Arrays.toString(h.value())));
        return out.toString();
    }

    static void headers(Client c) throws Exception {
        c.create(c.topic(), 1);
        var lists = List.<List<Header>>of(
            List.of(new RecordHeader("a", bytes("1")), new RecordHeader("b", bytes("2"))),
            List.of(new RecordHeader("same", bytes("first")), new RecordHeader("same", bytes("second")), new RecordHeader("same", bytes("first"))),
            List.of(new RecordHeader("null", (byte[]) null), new RecordHeader("empty", new byte[0]), new RecordHeader("binary", allBytes())),
            List.of(new RecordHeader("größe", bytes("naïve"))),
            List.of());
        var sent = new ArrayList<ProducerRecord<byte[], byte[]>>();
        for (var list : lists) sent.add(new ProducerRecord<>(c.topic(), 0, (byte[]) null, bytes("v"), list));
        c.produce(sent);
        var found = c.read(c.topic(), lists.size(), 0, EARLIEST, false);
        same(found.stream().map(r -> shown(r.headers())).toList(), lists.stream().map(Client::shown).toList(), "the headers");
    }

    static void nulls(Client c) throws Exception {
        c.create(c.topic(), 1);
        var sent = List.of(new Rec(null, "no key"), new Rec("no value", null), new Rec(null, null), new Rec("", ""));
        c.produce(sent);
        same(c.read(c.topic(), 4), sent, "the records read");
    }

    static void timestamps(Client c) throws Exception {
        c.create(c.topic(), 1);
        var sent = List.of(START_MS, START_MS + 1, START_MS - 86_400_000, START_MS + 5);
        c.produce(sent.stream().map(at -> new ProducerRecord<>(c.topic(), 0, at, bytes("k"), bytes("v"))).toList());
        var found = c.read(c.topic(), 4, 0, EARLIEST, false);
        same(found.stream().map(ConsumerRecord::timestamp).toList(), sent, "the timestamps");
        same(found.get(0).timestampType().name, "CreateTime", "their type");
    }

    static void largeRecord(Client c) throws Exception {
        c.create(c.topic(), 1);
        var value = new byte[1_000_000];
        for (int i = 0; i < value.length; i++) value[i] = (byte) (i * (i / 1000) % 251);
        c.produce(List.of(new ProducerRecord<>(c.topic(), 0, bytes("k"), value), new ProducerRecord<>(c.topic(), 0, bytes("l"), value)));
        for (var found : c.read(c.topic(), 2, 0, EARLIEST, false)) same(Arrays.equals(found.value(), value), true, "equality with the sent value");
    }

    static void many(Client c, int count, boolean idempotent) throws Exception {
        c.create(c.topic(), 1);
        var sent = records(c.topic(), 0, numbered(count));
        same(c.produce(sent, "enable.idempotence", idempotent, "acks", "all"), upTo(count), "the offsets");
        same(c.read(c.topic(), count), numbered(count), "the records read");
    }

    static void fromOffset(Client c) throws Exception {
        c.create(c.topic(), 2);
        c.produce(numbered("other", 0, 5));
        c.produce(records(c.topic(), 1, numbered(50)));
        // Offset 17 is in the middle of a batch.
        for (int start : new int[] {0, 17, 49}) {
            var found = c.read(c.topic(), 50 - start, 1, start, false);
            same(plain(found), numbered("value", start, 50 - start), "from " + start);
            same(found.get(0).offset(), (long) start, "the first offset");
        }
    }

    static void fromTime(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.produce(IntStream.range(0, 20).mapToObj(i -> new ProducerRecord<>(c.topic(), 0, START_MS + 1000L * i, bytes("k"), bytes("" + i))).toList());
        var at = new TopicPartition(c.topic(), 0);
        try (var consumer = c.consumer()) {
            for (var expected : Map.of(-5L, 0L, 7000L, 7L, 7001L, 8L).entrySet()) {
                var found = consumer.offsetsForTimes(Map.of(at, START_MS + expected.getKey())).get(at);
                same(found.offset(), expected.getValue(), "the offset " + expected.getKey() + " ms after the first");
                same(found.timestamp(), START_MS + 1000 * expected.getValue(), "its time");
            }
            same(consumer.offsetsForTimes(Map.of(at, START_MS + 60_000)).get(at), null, "the offset after all");
        }
        var latest = c.admin.listOffsets(Map.of(at, OffsetSpec.maxTimestamp())).partitionResult(at).get();
        same(List.of(latest.offset(), latest.timestamp()), List.of(19L, START_MS + 19_000), "offset and time of the newest record");
        same(c.read(c.topic(), 12, 0, 8, false).get(0).offset(), 8L, "the first offset read");
    }

    static void earliestLatest(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.produce(numbered(5));
        var at = new TopicPartition(c.topic(), 0);
        try (var consumer = c.consumer()) {
            same(consumer.beginningOffsets(List.of(at)).get(at), 0L, "the first offset");
            same(consumer.endOffsets(List.of(at)).get(at), 5L, "the next offset");
        }
        same(c.read(c.topic(), 5), numbered(5), "from the earliest");
        same(c.read(c.topic(), 0, 0, LATEST, false).size(), 0, "the number of records from the latest");
    }

    class Member implements AutoCloseable {
        final Consumer<byte[], byte[]> consumer;
        final String topic;

        Member(String topic, String group, Object... pairs) {
            var all = new ArrayList<Object>(List.of("group.id", group, "client.id", group + "-" + System.nanoTime()));
            all.addAll(List.of(pairs));
            if (!all.contains("group.protocol")) all.addAll(List.of("session.timeout.ms", 10_000, "heartbeat.interval.ms", 500));
            this.topic = topic;
            consumer = consumer(all.toArray());
            consumer.subscribe(List.of(topic));
        }

        List<ConsumerRecord<byte[], byte[]>> poll() {
            var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
            return found;
        }

        SortedSet<Integer> assignment() {
            return consumer.assignment().stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
        }

        void commit(long offset, String metadata) {
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset, metadata)));
        }

        OffsetAndMetadata committed() {
            var at = new TopicPartition(topic, 0);
            return consumer.committed(Set.of(at)).get(at);
        }

        @Override
        public void close() { consumer.close(); }
    }

    /** Polls members until they have {@code count} records and no more arrive. Each commits its records. */
    static List<ConsumerRecord<byte[], byte[]>> drain(List<Member> members, int count, String what) {
        var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        long last = System.nanoTime(), end = last + WAIT.toNanos();
        while ((found.size() < count || System.nanoTime() - last < QUIET.toNanos()) && System.nanoTime() < end) {
            for (var member : members) {
                var records = member.poll();
                if (records.isEmpty()) continue;
                found.addAll(records);
                last = System.nanoTime();
                member.consumer.commitSync();
            }
        }
        if (found.size() != count) throw new AssertionError(what + ": " + found.size() + " records, not " + count);
        return found;
    }

    /** Polls members until each has some of the partitions, and each partition has one member. */
    static List<SortedSet<Integer>> settled(List<Member> members, int partitions, String what) {
        var parts = new ArrayList<SortedSet<Integer>>();
        until(what, () -> {
            parts.clear();
            for (var member : members) same(member.poll().size(), 0, "the number of unexpected records");
            for (var member : members) parts.add(member.assignment());
            var all = parts.stream().flatMap(Set::stream).sorted().toList();
            return parts.stream().noneMatch(Set::isEmpty) && all.equals(IntStream.range(0, partitions).boxed().toList());
        });
        return parts;
    }

    static void group(Client c, Object... pairs) throws Exception {
        int partitions = 4;
        c.create(c.topic(), partitions);
        var first = c.new Member(c.topic(), c.name("group"), pairs);
        try (first) {
            c.round(0, partitions, List.of(first));
            settled(List.of(first), partitions, "one member has all partitions");
            try (var second = c.new Member(c.topic(), c.name("group"), pairs)) {
                settled(List.of(first, second), partitions, "both members have partitions");
                c.round(1, partitions, List.of(first, second));
            }
            settled(List.of(first), partitions, "the remaining member has all partitions");
            c.round(2, partitions, List.of(first));
        }
    }

    void round(int number, int partitions, List<Member> members) throws Exception {
        var sent = new ArrayList<ProducerRecord<byte[], byte[]>>();
        for (int p = 0; p < partitions; p++) sent.addAll(records(topic(), p, numbered("round-" + number + "-" + p, 0, 10)));
        produce(sent);
        var found = drain(members, sent.size(), "round " + number).stream().map(r -> r.partition() + " " + text(r.value())).sorted().toList();
        same(found, sent.stream().map(r -> r.partition() + " " + text(r.value())).sorted().toList(), "round " + number);
    }

    static void groupStatic(Client c) throws Exception {
        c.create(c.topic(), 4);
        Function<String, Member> join = instance -> c.new Member(c.topic(), c.name("group"), "group.instance.id", instance);
        try (var first = join.apply("one")) {
            List<SortedSet<Integer>> before;
            try (var second = join.apply("two")) {
                before = settled(List.of(first, second), 4, "both members have partitions");
            }
            try (var again = join.apply("two")) {
                until("the returning member has partitions", () -> {
                    first.poll();
                    again.poll();
                    same(first.assignment(), before.get(0), "the partitions of the other member");
                    return !again.assignment().isEmpty();
                });
                same(again.assignment(), before.get(1), "the partitions of the returning member");
                c.round(0, 4, List.of(first, again));
            }
        }
    }

    static void commitResume(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.produce(numbered(10));
        var at = new OffsetAndMetadata(4, "four of ten, café");
        try (var member = c.new Member(c.topic(), c.name("group"))) {
            until("records", () -> !member.poll().isEmpty());
            member.commit(4, at.metadata());
            same(member.committed().offset() + member.committed().metadata(), at.offset() + at.metadata(), "the committed offset");
        }
        try (var member = c.new Member(c.topic(), c.name("group"))) {
            same(plain(drain(List.of(member), 6, "the rest")), numbered("value", 4, 6), "the records after the committed offset");
            same(member.committed().offset(), 10L, "the last committed offset");
        }
    }

    static void adminTopics(Client c) throws Exception {
        c.create(c.topic(), 2);
        refused("TOPIC_ALREADY_EXISTS", () -> c.create(c.topic(), 2));
        refused("INVALID_TOPIC_EXCEPTION", () -> c.create("not a name!", 1));
        same(c.admin.listTopics().names().get().contains(c.topic()), true, "presence of the topic in the list");
        c.admin.createPartitions(Map.of(c.topic(), NewPartitions.increaseTo(5))).all().get();
        until("the topic has five partitions", () -> c.partitions(c.topic()) == 5);
        c.produce(records(c.topic(), 4, numbered(3)));
        same(plain(c.read(c.topic(), 3, 4, EARLIEST, false)), numbered(3), "the records of a new partition");
        refused("INVALID_PARTITIONS", () -> c.admin.createPartitions(Map.of(c.topic(), NewPartitions.increaseTo(3))).all().get());
        var id = c.admin.describeTopics(List.of(c.topic())).allTopicNames().get().get(c.topic()).topicId();
        same(c.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name(), c.topic(), "the name of the topic id");
        c.admin.deleteTopics(List.of(c.topic())).all().get();
        until("the topic is deleted", () -> c.partitions(c.topic()) == 0);
        refused("UNKNOWN_TOPIC_OR_PARTITION", () -> c.admin.deleteTopics(List.of(c.topic())).all().get());
    }

    static void adminConfigs(Client c) throws Exception {
        c.create(c.topic(), 1, "retention.ms", "3600000", "cleanup.policy", "delete");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, c.topic());
        Callable<Config> configs = () -> c.admin.describeConfigs(List.of(resource)).all().get().get(resource);
        var before = configs.call().get("retention.bytes").value();
        same(configs.call().get("retention.ms").value(), "3600000", "retention.ms");
        same(configs.call().get("retention.ms").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        BiFunction<ConfigEntry, AlterConfigOp.OpType, Call> set = (entry, kind) ->
            () -> c.admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(entry, kind)))).all().get();
        set.apply(new ConfigEntry("retention.bytes", "123456789"), AlterConfigOp.OpType.SET).run();
        until("retention.bytes is set", () -> configs.call().get("retention.bytes").value().equals("123456789"));
        same(configs.call().get("retention.ms").value(), "3600000", "retention.ms afterwards");
        set.apply(new ConfigEntry("retention.bytes", ""), AlterConfigOp.OpType.DELETE).run();
        until("retention.bytes has its default", () -> configs.call().get("retention.bytes").value().equals(before));
        refused("INVALID_CONFIG", set.apply(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET));
    }

    static void adminDeleteRecords(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.produce(numbered(10));
        var at = new TopicPartition(c.topic(), 0);
        same(c.admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(4))).lowWatermarks().get(at).get().lowWatermark(), 4L, "the first offset");
        same(c.read(c.topic(), 6), numbered("value", 4, 6), "the records read");
        refused("OFFSET_OUT_OF_RANGE", () -> c.admin.deleteRecords(Map.of(at, RecordsToDelete.beforeOffset(11))).all().get());
    }

    static void adminGroups(Client c) throws Exception {
        c.create(c.topic(), 2);
        c.produce(numbered(5));
        c.produce(records(c.topic(), 1, numbered(5)));
        var group = c.name("group");
        TopicPartition zero = new TopicPartition(c.topic(), 0), one = new TopicPartition(c.topic(), 1);
        Callable<Boolean> listed = () -> c.admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group));
        Callable<ConsumerGroupDescription> described = () -> c.admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        try (var member = c.new Member(c.topic(), group)) {
            drain(List.of(member), 10, "records");
            same(listed.call(), true, "presence of the group in the list");
            same(described.call().groupState(), GroupState.STABLE, "its state");
            same(described.call().members().iterator().next().assignment().topicPartitions(), Set.of(zero, one), "the assignment");
        }
        until("the group is empty", () -> described.call().groupState() == GroupState.EMPTY);
        Callable<Map<TopicPartition, Long>> offsets = () -> {
            var found = new HashMap<TopicPartition, Long>();
            c.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((at, offset) -> found.put(at, offset.offset()));
            return found;
        };
        same(offsets.call(), Map.of(zero, 5L, one, 5L), "the group's offsets");
        c.admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(2))).all().get();
        same(offsets.call(), Map.of(zero, 2L, one, 5L), "the group's offsets after one was set");
        c.admin.deleteConsumerGroupOffsets(group, Set.of(one)).all().get();
        same(offsets.call(), Map.of(zero, 2L), "the group's offsets after one was deleted");
        c.admin.deleteConsumerGroups(List.of(group)).all().get();
        until("the group is deleted", () -> !listed.call());
        refused("GROUP_ID_NOT_FOUND", () -> c.admin.deleteConsumerGroups(List.of(group)).all().get());
    }

    static void adminCluster(Client c) throws Exception {
        var cluster = c.admin.describeCluster();
        same(cluster.nodes().get().contains(cluster.controller().get()), true, "presence of the controller among the nodes");
        same(cluster.clusterId().get().isEmpty(), false, "an empty cluster id");
        var features = c.admin.describeFeatures().featureMetadata().get();
        same(features.supportedFeatures() != null, true, "presence of the supported features");
    }

    static void adminLogDirs(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.produce(numbered(100));
        int node = c.admin.describeCluster().controller().get().id();
        long bytes = 0;
        for (var directory : c.admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).values()) {
            var replica = directory.replicaInfos().get(new TopicPartition(c.topic(), 0));
            if (replica != null) bytes += replica.size();
        }
        if (bytes < 100) throw new AssertionError(bytes + " bytes");
    }

    Producer<byte[], byte[]> transactional() {
        var producer = producer("transactional.id", name("id"));
        producer.initTransactions();
        return producer;
    }

    static void transactionCommitAbort(Client c) throws Exception {
        c.create(c.topic(), 1);
        var rounds = List.of(numbered("round-0", 0, 3), numbered("round-1", 0, 3), numbered("round-2", 0, 3));
        try (var producer = c.transactional()) {
            for (int round = 0; round < 3; round++) {
                producer.beginTransaction();
                deliver(producer, records(c.topic(), 0, rounds.get(round)));
                if (round == 2) same(c.committed(c.topic(), 3), rounds.get(0), "the committed records during a transaction");
                if (round == 1) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
        var committed = new ArrayList<>(rounds.get(0));
        committed.addAll(rounds.get(2));
        until("the last transaction is committed", () -> c.committed(c.topic(), 0).size() == 6);
        same(c.committed(c.topic(), 6), committed, "the committed records");
        same(c.read(c.topic(), 9), rounds.stream().flatMap(List::stream).toList(), "the records of all transactions");
    }

    static void transactionTransform(Client c) throws Exception {
        String in = c.name("in"), out = c.name("out");
        c.create(in, 1);
        c.create(out, 1);
        c.produce(records(in, 0, numbered(6)));
        Function<List<Rec>, List<Rec>> doubled = records -> records.stream().map(r -> new Rec(r.key, r.value + r.value)).toList();
        try (var producer = c.transactional(); var member = c.new Member(in, c.name("group"))) {
            var found = new ArrayList<Rec>();
            until("all records", () -> found.addAll(plain(member.poll())) && found.size() == 6);
            for (var step : new int[][] {{0, 4}, {4, 6}}) {
                producer.beginTransaction();
                deliver(producer, records(out, 0, doubled.apply(found.subList(step[0], step[1]))));
                var offsets = Map.of(new TopicPartition(in, 0), new OffsetAndMetadata(step[1]));
                producer.sendOffsetsToTransaction(offsets, member.consumer.groupMetadata());
                if (step[1] == 4) producer.commitTransaction();
                else producer.abortTransaction();
                until("the offset is committed", () -> member.committed() != null && member.committed().offset() == 4);
            }
        }
        same(c.committed(out, 4), doubled.apply(numbered(4)), "the committed records");
        try (var member = c.new Member(in, c.name("group"))) {
            same(plain(drain(List.of(member), 2, "the rest")), numbered("value", 4, 2), "the records of a new member");
        }
    }

    static void transactionFenced(Client c) throws Exception {
        c.create(c.topic(), 1);
        var zombie = c.transactional();
        zombie.beginTransaction();
        deliver(zombie, records(c.topic(), 0, numbered("zombie", 0, 2)));
        try (var successor = c.transactional()) {
            successor.beginTransaction();
            deliver(successor, records(c.topic(), 0, numbered("successor", 0, 2)));
            refused("PRODUCER_FENCED|INVALID_PRODUCER_EPOCH", () -> {
                deliver(zombie, records(c.topic(), 0, numbered("late", 0, 1)));
                zombie.commitTransaction();
            });
            zombie.close(Duration.ZERO);
            var state = c.admin.describeTransactions(List.of(c.name("id"))).all().get().get(c.name("id")).state();
            same(state, TransactionState.ONGOING, "the state of the transaction");
            successor.commitTransaction();
        }
        until("the successor's records are committed", () -> c.committed(c.topic(), 0).size() == 2);
        same(c.committed(c.topic(), 2), numbered("successor", 0, 2), "the committed records");
    }

    static void autoCreate(Client c) throws Exception {
        same(c.produce(numbered(3)), upTo(3), "the offsets");
        same(c.read(c.topic(), 3), numbered(3), "the records read");
    }

    static void unknownTopic(Client c) throws Exception {
        refused("UNKNOWN_TOPIC_OR_PARTITION", () -> c.admin.describeTopics(List.of(c.topic())).allTopicNames().get());
        same(c.partitions(c.topic()), 0, "partitions");
    }

    static void tooLarge(Client c) throws Exception {
        c.create(c.topic(), 1, "max.message.bytes", "20000");
        refused("MESSAGE_TOO_LARGE", () -> c.produce(List.of(new ProducerRecord<>(c.topic(), 0, bytes("k"), new byte[50_000]))));
        same(c.produce(numbered(3)), upTo(3), "the offsets of others");
        same(c.read(c.topic(), 3), numbered(3), "the records read");
    }

    static void sasl(Client c, String mechanism, boolean tls) throws Exception {
        var variable = tls ? "COMPAT_SASL_TLS" : "COMPAT_SASL";
        var address = System.getenv(variable);
        if (address == null) throw new Skip(variable + " is not set");
        var module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        Function<String, Client> as = password -> {
            var security = new HashMap<String, Object>();
            security.put("security.protocol", tls ? "SASL_SSL" : "SASL_PLAINTEXT");
            security.put("sasl.mechanism", mechanism);
            security.put("sasl.jaas.config", "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";"
                .formatted(module, System.getenv("COMPAT_USER"), password));
            if (tls) {
                security.put("ssl.truststore.type", "PEM");
                security.put("ssl.truststore.location", Path.of(System.getenv("COMPAT_CA")).toString());
            }
            return new Client(address, c.prefix, security);
        };
        var known = as.apply(System.getenv("COMPAT_PASSWORD"));
        known.create(c.topic(), 1);
        same(known.produce(numbered(3)), upTo(3), "the offsets");
        same(known.read(c.topic(), 3), numbered(3), "the records read");
        known.admin.close();
        var stranger = as.apply("wrong");
        refused("SASL_AUTHENTICATION_FAILED", () -> stranger.admin.describeCluster().nodes().get());
        stranger.admin.close(Duration.ZERO);
    }

    // Share groups: queues over topics.

    ShareConsumer<byte[], byte[]> sharer(Object... pairs) {
        var options = options(pairs);
        options.putIfAbsent("group.id", name("group"));
        var consumer = new KafkaShareConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic()));
        return consumer;
    }

    ShareConsumer<byte[], byte[]> explicit(Object... pairs) {
        var all = new ArrayList<Object>(List.of("share.acknowledgement.mode", "explicit"));
        all.addAll(List.of(pairs));
        return sharer(all.toArray());
    }

    void setGroup(String... pairs) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, name("group"));
        var changes = new ArrayList<AlterConfigOp>();
        for (int i = 0; i < pairs.length; i += 2) changes.add(new AlterConfigOp(new ConfigEntry(pairs[i], pairs[i + 1]), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        until("the group is set", () -> {
            var found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            return changes.stream().allMatch(change -> found.get(change.configEntry().name()).value().equals(change.configEntry().value()));
        });
    }

    void fromEarliest() throws Exception { setGroup("share.auto.offset.reset", "earliest"); }

    /** Polls until there are records, and returns them. */
    static List<ConsumerRecord<byte[], byte[]>> some(ShareConsumer<byte[], byte[]> consumer) {
        var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        until("records", () -> {
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            return !found.isEmpty();
        });
        return found;
    }

    static void settled(ShareConsumer<byte[], byte[]> consumer) {
        consumer.commitSync().forEach((at, failure) -> same(failure, Optional.empty(), "the failure of " + at));
    }

    static List<String> deliveries(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(r -> r.offset() + " x" + r.deliveryCount().orElse((short) 0)).toList();
    }

    static void nothing(ShareConsumer<byte[], byte[]> consumer) {
        for (int i = 0; i < 3; i++) same(consumer.poll(QUIET).count(), 0, "the number of records that are left");
    }

    static void shareImplicit(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(50));
        try (var consumer = c.sharer()) {
            var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            while (found.size() < 50) found.addAll(some(consumer));
            same(plain(found), numbered(50), "the delivered records");
            settled(consumer);
            nothing(consumer);
            c.produce(numbered("later", 0, 3));
            same(plain(some(consumer)), numbered("later", 0, 3), "the later records");
            // The next poll settles the last delivered records, or this call does.
            settled(consumer);
        }
        try (var consumer = c.sharer()) {
            nothing(consumer);
        }
    }

    static void shareExplicit(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(6));
        try (var consumer = c.explicit()) {
            var found = some(consumer);
            same(deliveries(found), List.of("0 x1", "1 x1", "2 x1", "3 x1", "4 x1", "5 x1"), "the delivered records");
            var kinds = List.of(AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT);
            for (int i = 0; i < 6; i++) consumer.acknowledge(found.get(i), kinds.get(i));
            settled(consumer);
            var again = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            while (again.size() < 2) {
                var next = some(consumer);
                next.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
                again.addAll(next);
            }
            same(deliveries(again), List.of("1 x2", "4 x2"), "the released records");
            settled(consumer);
            nothing(consumer);
        }
    }

    static void shareDeliveryLimit(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(1));
        try (var consumer = c.explicit()) {
            for (int i = 1; i <= 5; i++) {
                var found = some(consumer);
                same(deliveries(found), List.of("0 x" + i), "the delivered records");
                consumer.acknowledge(found.get(0), AcknowledgeType.RELEASE);
                settled(consumer);
            }
            nothing(consumer);
            c.produce(numbered("next", 0, 1));
            var next = some(consumer);
            same(deliveries(next), List.of("1 x1"), "the next records");
            consumer.acknowledge(next.get(0));
        }
    }

    static void shareRenew(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(1));
        try (var consumer = c.explicit()) {
            var found = some(consumer);
            for (int i = 0; i < 2; i++) {
                consumer.acknowledge(found.get(0), AcknowledgeType.RENEW);
                settled(consumer);
                // A record with a renewed lease is delivered to its member again, to be settled.
                found = some(consumer);
                same(deliveries(found), List.of("0 x1"), "the records with a renewed lease");
            }
            consumer.acknowledge(found.get(0), AcknowledgeType.ACCEPT);
            settled(consumer);
            nothing(consumer);
        }
    }

    static void shareTwo(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        try (var one = c.sharer("max.poll.records", 5); var two = c.sharer("max.poll.records", 5)) {
            nothing(one);
            nothing(two);
            try (var producer = c.producer("linger.ms", 0)) {
                for (int i = 0; i < 40; i++) deliver(producer, records(c.topic(), 0, numbered("value", 5 * i, 5)));
            }
            var found = Map.of(one, new ArrayList<Rec>(), two, new ArrayList<Rec>());
            until("all records", () -> {
                for (var consumer : List.of(one, two)) {
                    for (var record : consumer.poll(Duration.ofMillis(100))) found.get(consumer).addAll(plain(List.of(record)));
                    consumer.commitSync();
                }
                return found.get(one).size() + found.get(two).size() >= 200;
            });
            nothing(one);
            nothing(two);
            same(found.values().stream().noneMatch(List::isEmpty), true, "presence of records at both consumers");
            var all = new HashSet<Rec>(found.get(one));
            all.addAll(found.get(two));
            same(all, Set.copyOf(numbered(200)), "the records of both consumers");
            same(found.get(one).size() + found.get(two).size(), 200, "the number of records of both consumers");
        }
    }

    static void shareGivenBack(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(10));
        try (var other = c.explicit()) {
            try (var consumer = c.explicit()) {
                var found = some(consumer);
                same(plain(found), numbered(10), "the records of the first consumer");
                nothing(other);
                for (var record : found.subList(0, 4)) consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                // Closing does not settle the other records, so they are released here.
                for (var record : found.subList(4, 10)) consumer.acknowledge(record, AcknowledgeType.RELEASE);
            }
            var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
            while (found.size() < 6) {
                var next = some(other);
                next.forEach(record -> other.acknowledge(record));
                found.addAll(next);
            }
            same(plain(found), numbered("value", 4, 6), "the records of the other consumer");
        }
    }

    static void shareCommitted(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.setGroup("share.auto.offset.reset", "earliest", "share.isolation.level", "read_committed");
        try (var producer = c.transactional(); var consumer = c.sharer()) {
            producer.beginTransaction();
            deliver(producer, records(c.topic(), 0, numbered("aborted", 0, 3)));
            nothing(consumer);
            producer.abortTransaction();
            producer.beginTransaction();
            deliver(producer, records(c.topic(), 0, numbered("committed", 0, 3)));
            nothing(consumer);
            producer.commitTransaction();
            same(plain(some(consumer)), numbered("committed", 0, 3), "the delivered records");
        }
    }

    static void shareAdmin(Client c) throws Exception {
        c.create(c.topic(), 2);
        c.fromEarliest();
        c.produce(numbered(5));
        c.produce(records(c.topic(), 1, numbered(4)));
        var group = c.name("group");
        TopicPartition zero = new TopicPartition(c.topic(), 0), one = new TopicPartition(c.topic(), 1);
        Callable<Optional<GroupListing>> listed = () ->
            c.admin.listGroups(ListGroupsOptions.forShareGroups()).all().get().stream().filter(each -> each.groupId().equals(group)).findAny();
        Callable<ShareGroupDescription> described = () -> c.admin.describeShareGroups(List.of(group)).all().get().get(group);
        Callable<Map<TopicPartition, Long>> lags = () -> {
            var found = new HashMap<TopicPartition, Long>();
            var infos = c.admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get();
            infos.forEach((at, info) -> { if (info != null) found.put(at, info.lag().orElse(-1L)); });
            return found;
        };
        try (var consumer = c.sharer()) {
            int count = 0;
            while (count < 9) count += some(consumer).size();
            settled(consumer);
            same(listed.call().flatMap(GroupListing::type), Optional.of(GroupType.SHARE), "the listed type of the group");
            same(described.call().groupState(), GroupState.STABLE, "its state");
            same(described.call().members().iterator().next().assignment().topicPartitions(), Set.of(zero, one), "the assignment");
            refused("NON_EMPTY_GROUP", () -> c.admin.alterShareGroupOffsets(group, Map.of(zero, 2L)).all().get());
            refused("NON_EMPTY_GROUP", () -> c.admin.deleteShareGroups(List.of(group)).all().get());
        }
        until("the group is empty", () -> described.call().groupState() == GroupState.EMPTY);
        until("the lag is 0", () -> lags.call().equals(Map.of(zero, 0L, one, 0L)));
        c.admin.alterShareGroupOffsets(group, Map.of(zero, 2L)).all().get();
        until("the lag is 3", () -> lags.call().equals(Map.of(zero, 3L, one, 0L)));
        try (var consumer = c.sharer()) {
            same(plain(some(consumer)), numbered("value", 2, 3), "the records delivered from there");
        }
        until("the group is empty", () -> described.call().groupState() == GroupState.EMPTY);
        c.admin.deleteShareGroupOffsets(group, Set.of(c.topic())).all().get();
        until("the group has no offsets", () -> lags.call().isEmpty());
    }

    static void shareDelete(Client c) throws Exception {
        c.create(c.topic(), 1);
        c.fromEarliest();
        c.produce(numbered(3));
        var group = c.name("group");
        Callable<Boolean> listed = () -> c.admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group));
        try (var consumer = c.sharer()) {
            same(some(consumer).size(), 3, "the number of records");
        }
        until("the group can be deleted", () -> {
            try {
                c.admin.deleteShareGroups(List.of(group)).all().get();
                return true;
            } catch (ExecutionException e) {
                if (error(e) != Errors.NON_EMPTY_GROUP) throw e;
                return false;
            }
        });
        until("the group is deleted", () -> !listed.call());
        refused("GROUP_ID_NOT_FOUND", () -> c.admin.describeShareGroups(List.of(group)).all().get());
        try (var consumer = c.sharer()) {
            same(some(consumer).size(), 3, "the number of records for a new one");
        }
    }

    static Map<String, Scenario> scenarios() {
        var all = new LinkedHashMap<String, Scenario>();
        for (var codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) all.put("codec_" + codec, c -> codec(c, codec));
        all.put("headers", Client::headers);
        all.put("nulls", Client::nulls);
        all.put("timestamps", Client::timestamps);
        all.put("large_record", Client::largeRecord);
        all.put("many_in_order", c -> many(c, 10_000, false));
        all.put("from_offset", Client::fromOffset);
        all.put("from_time", Client::fromTime);
        all.put("earliest_latest", Client::earliestLatest);
        var assignor = "partition.assignment.strategy";
        all.put("group_eager", c -> group(c, assignor, RangeAssignor.class.getName()));
        all.put("group_cooperative", c -> group(c, assignor, CooperativeStickyAssignor.class.getName()));
        all.put("group_static", Client::groupStatic);
        all.put("group_server_side", c -> group(c, "group.protocol", "consumer"));
        all.put("share_implicit", Client::shareImplicit);
        all.put("share_explicit", Client::shareExplicit);
        all.put("share_delivery_limit", Client::shareDeliveryLimit);
        all.put("share_renew", Client::shareRenew);
        all.put("share_two_consumers", Client::shareTwo);
        all.put("share_given_back", Client::shareGivenBack);
        all.put("share_committed", Client::shareCommitted);
        all.put("share_admin", Client::shareAdmin);
        all.put("share_delete", Client::shareDelete);
        all.put("commit_resume", Client::commitResume);
        all.put("admin_topics", Client::adminTopics);
        all.put("admin_configs", Client::adminConfigs);
        all.put("admin_delete_records", Client::adminDeleteRecords);
        all.put("admin_groups", Client::adminGroups);
        all.put("admin_cluster", Client::adminCluster);
        all.put("admin_log_dirs", Client::adminLogDirs);
        all.put("idempotent", c -> many(c, 2000, true));
        all.put("transaction_commit_abort", Client::transactionCommitAbort);
        all.put("transaction_transform", Client::transactionTransform);
        all.put("transaction_fenced", Client::transactionFenced);
        all.put("auto_create", Client::autoCreate);
        all.put("unknown_topic", Client::unknownTopic);
        all.put("too_large", Client::tooLarge);
        for (boolean tls : new boolean[] {false, true}) {
            for (var mechanism : List.of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")) {
                var name = mechanism.toLowerCase().replace("-sha-", "_");
                all.put((tls ? "tls_" : "sasl_") + name, c -> sasl(c, mechanism, tls));
            }
        }
        return all;
    }

    static boolean attempt(String name, Scenario scenario, String address) {
        var prefix = "java." + name + "." + ProcessHandle.current().pid() + "." + System.nanoTime() % 1_000_000;
        long begin = System.nanoTime();
        var client = new Client(address, prefix, Map.of());
        var task = new FutureTask<Void>(() -> {
            scenario.run(client);
            return null;
        });
        var thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        String line;
        try {
            task.get(SCENARIO_SECONDS, TimeUnit.SECONDS);
            line = "ok %s (%.1f s)".formatted(name, (System.nanoTime() - begin) / 1e9);
        } catch (ExecutionException e) {
            var cause = e.getCause();
            if (System.getenv("COMPAT_TRACE") != null) cause.printStackTrace();
            line = (cause instanceof Skip ? "skipped " : "FAILED ") + name + ": "
                + (cause instanceof AssertionError || cause instanceof Skip ? cause.getMessage() : cause.toString()).replaceAll("\\s+", " ");
        } catch (java.util.concurrent.TimeoutException | InterruptedException e) {
            line = "FAILED " + name + ": not within " + SCENARIO_SECONDS + " s";
        }
        client.admin.close(Duration.ZERO);
        System.out.println(line);
        return !line.startsWith("FAILED");
    }

    public static void main(String[] args) {
        var all = scenarios();
        var wanted = args.length > 1 ? List.of(args).subList(1, args.length) : List.copyOf(all.keySet());
        if (args.length == 0 || !all.keySet().containsAll(wanted)) {
            System.err.println("usage: Client HOST:PORT [SCENARIO..], of " + String.join(" ", all.keySet()));
            System.exit(2);
        }
        System.out.println("client java " + AppInfoParser.getVersion());
        boolean passed = true;
        for (var name : wanted) passed &= attempt(name, all.get(name), args[0]);
        System.exit(passed ? 0 : 1);
    }
}
