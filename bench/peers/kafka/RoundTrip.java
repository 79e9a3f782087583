import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends one record at a time to a topic and back, like Kafka's EndToEndLatency, in microseconds and after a warm-up:
 * java -cp 'libs/*' RoundTrip.java BOOTSTRAP TOPIC RECORDS BYTES WARM_UP
 */
public final class RoundTrip {
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int records = Integer.parseInt(args[2]), bytes = Integer.parseInt(args[3]), warmUp = Integer.parseInt(args[4]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        settings.put("fetch.max.wait.ms", "500");
        long[] acknowledged = new long[records], returned = new long[records];
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
             KafkaConsumer<byte[], byte[]> consumer =
                 new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            consumer.position(partitions.get(0));
            for (int number = -warmUp; number < records; number++) {
                byte[] value = ByteBuffer.allocate(bytes).putInt(number).array();
                long begin = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, value)).get();
                long ack = System.nanoTime();
                expect(consumer, value);
                if (number >= 0) {
                    acknowledged[number] = ack - begin;
                    returned[number] = System.nanoTime() - begin;
                }
            }
        }
        print("acknowledged", acknowledged);
        print("returned", returned);
    }

    private static void expect(KafkaConsumer<byte[], byte[]> consumer, byte[] value) {
        ConsumerRecords<byte[], byte[]> found = consumer.poll(PATIENCE);
        if (found.count() != 1) {
            throw new IllegalStateException(found.count() + " records were received, but one was sent");
        }
        for (ConsumerRecord<byte[], byte[]> record : found) {
            if (!Arrays.equals(record.value(), value)) {
                throw new IllegalStateException("a different record was received");
            }
        }
    }

    private static void print(String what, long[] nanos) {
        Arrays.sort(nanos);
        StringBuilder line = new StringBuilder(what);
        for (double part : new double[] {0.5, 0.9, 0.99, 0.999}) {
            int at = Math.min(nanos.length - 1, (int) (part * nanos.length));
            line.append(String.format(" p%s %.1f", String.valueOf(part * 100).replaceAll("\\.?0+$", ""), nanos[at] / 1e3));
        }
        System.out.println(line);
    }
}
