"""Idempotent producer and consumer of librdkafka, with a history of their events. Ends when the standard input does."""

import json
import sys
import threading
import time

import confluent_kafka as kafka

servers, topic, path = sys.argv[1:]
lock = threading.Lock()
history = open(path, "a")
ending = threading.Event()
PERIOD = 0.01


def now():
    return time.monotonic_ns() // 1000


def add(**event):
    with lock:
        history.write(json.dumps(event) + "\n")


def produce():
    life = 0
    while not ending.is_set():
        # A fatal error, such as a message that timed out while others followed it, ends a producer.
        life_of_producer(f"kafka-{life}")
        life += 1


def life_of_producer(name):
    producer = kafka.Producer({
        "bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 30000,
        "linger.ms": 0, "socket.timeout.ms": 10000})
    number = 0
    dead = False

    def note(number, begin):
        def delivered(error, message):
            ok = error is None
            add(op="sent", producer=name, number=number, partition=number % 2,
                offset=message.offset() if ok else None, outcome="ok" if ok else "unknown", begin=begin, end=now())
        return delivered

    due = time.monotonic()
    while not ending.is_set() and not dead:
        due += PERIOD
        pause = due - time.monotonic()
        producer.poll(max(pause, 0))
        if pause > 0:
            time.sleep(max(due - time.monotonic(), 0))
        try:
            producer.produce(topic, f"{name}:{number}", partition=number % 2, on_delivery=note(number, now()))
            number += 1
        except (BufferError, kafka.KafkaException):
            dead = True
    producer.flush(45)


def consume():
    consumer = kafka.Consumer({
        "bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 1000})
    consumer.assign([kafka.TopicPartition(topic, partition, 0) for partition in range(2)])
    while not ending.is_set():
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        producer, number = message.value().decode().rsplit(":", 1)
        add(op="read", reader="kafka", partition=message.partition(), offset=message.offset(), producer=producer,
            number=int(number))
    consumer.close()


threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
for thread in threads:
    thread.start()
sys.stdin.read()
ending.set()
for thread in threads:
    thread.join()
history.close()
