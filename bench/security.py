#!/usr/bin/env python3
"""Measures what security costs, in four parts:

    rates       the same loads without logins, with logins alone, and with a limited user whose permissions are checked
    logins      logins per second of one core: SCRAM, token, client certificate
    storm       one publish in flight on a connection, before and during many logins of others
    neighbours  one publish at a time at a fixed rate, alone and next to a client far over its quota

The broker uses one core, and the load the others; the rarely busy clients whose latency is measured have their own if
there are three. Each run has its own broker, runs that are compared alternate, and a ratio is within one round. The
script needs Linux, Python 3, openssl, redis-tools and the Python package confluent-kafka. Leave the machine idle.

    bench/security.py target/release/thalweg --json security.json
"""

import argparse
import json
import multiprocessing
import os
import re
import selectors
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "peers")]
import peer  # noqa: E402
import raw_clients as raw  # noqa: E402

PARTS = ("rates", "logins", "storm", "neighbours")
START_SECONDS = 20
USER, PASSWORD = "bob", "secret"
OTHER = "ann"
LOGINS = ("auth=required", f"users={USER}:{PASSWORD},{OTHER}:{PASSWORD}",
          f"sqs_credentials={USER}:{PASSWORD},{OTHER}:{PASSWORD}")
LOCKED = (*LOGINS, "authorization=true")
# What the limited user may do; everything else is denied.
ENTRIES = (("all", "topic", "bench", "--prefix"), ("write,describe", "queue", "bench"),
           ("read,write", "cache", "db0/", "--prefix"))
# Brokers whose rates are compared: their settings, and the permissions of their user.
VARIANTS = {"open": ((), ()), "logins": (LOGINS, ()), "limited": (LOCKED, ENTRIES)}
TOPIC = "bench"
RECORD_BYTES = 128
NATIVE_BATCH = 64
SQS_CONNECTIONS, SQS_BODIES = 16, 64
LOGIN_CONNECTIONS = 4
# The quota of the neighbour, the part of it that the neighbour tries to use, and the size of its records.
QUOTA_BYTES, TIMES_QUOTA, NEIGHBOUR_BYTES = 1 << 20, 10, 32 << 10
VICTIM_RATE = 200
CORES = sorted(os.sched_getaffinity(0))
BROKER_CORE, QUIET_CORE, LOAD_CORES = CORES[0], CORES[min(1, len(CORES) - 1)], CORES[min(2, len(CORES) - 1):]


class Broker:
    """A broker on its own core, with a topic and a queue."""

    def __init__(self, program, settings, entries=()):
        self.program = program
        names = ("native", "kafka", "sqs", "redis")
        self.ports = dict(zip(names, peer.free_ports(len(names))))
        doors = [f"{name}=127.0.0.1:{port}" for name, port in self.ports.items()] + ["http=off", "pubsub=off"]
        sets = [part for pair in [*doors, "threads=1", *settings] for part in ("--set", pair)]
        self.log = tempfile.TemporaryFile()
        self.state = tempfile.TemporaryDirectory()
        # The administrator's token of this broker is in its own folder.
        self.env = {**os.environ, "XDG_RUNTIME_DIR": self.state.name}
        command = ["taskset", "-c", str(BROKER_CORE), program, "serve", *sets]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=self.env)
        answer = b"-NOAUTH" if "auth=required" in settings else b"+PONG"
        if not peer.await_answer(self.process, self.ports["redis"], b"PING\r\n", answer, START_SECONDS):
            self.log.seek(0)
            peer.fail(f"the broker does not answer: {self.log.read().decode()}")
        self.run("topic", "create", TOPIC)
        self.run("queue", "create", "bench")
        for entry in entries:
            self.run("acl", "add", f"User:{USER}", *entry)

    def run(self, *command, env=None):
        address = f"tcp://127.0.0.1:{self.ports['native']}"
        done = subprocess.run([self.program, "-s", address, *command], capture_output=True, text=True,
                              env={**self.env, **(env or {})})
        if done.returncode:
            peer.fail(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def cpu_seconds(self):
        return peer.cpu_seconds(self.process.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        peer.stop(self.process)
        self.state.cleanup()


def on_cores(cores, function, *args):
    """Runs a function in another process on these cores, and returns its result."""
    return started_on(cores, function, *args)()


def started_on(cores, function, *args):
    """Starts a function in another process on these cores. Returns a function that waits for its result."""
    receiver, sender = multiprocessing.Pipe(False)

    def work():
        os.sched_setaffinity(0, cores)
        try:
            sender.send((True, function(*args)))
        except Exception as error:  # The parent fails with it.
            sender.send((False, f"{function.__name__}: {error!r}"))

    process = multiprocessing.Process(target=work, daemon=True)
    process.start()
    sender.close()

    def result():
        try:
            is_done, value = receiver.recv()
        except EOFError:
            is_done, value = False, f"{function.__name__} ended early"
        process.join()
        return value if is_done else peer.fail(value)

    return result


# Rates


def native_rate(broker, has_login, seconds):
    """Records per second of `thalweg bench pubsub`, in batches of 64 over TCP."""
    count = max(NATIVE_BATCH * 100, int(seconds * 1_000_000))
    with tempfile.NamedTemporaryFile() as report:
        load = ["bench", "pubsub", "--mode", "publish", "--transport", "tcp", "--batch", str(NATIVE_BATCH)]
        load += ["--fanout", "0", "--count", str(count), "--payload", str(RECORD_BYTES), "--report", report.name]
        login = ["--set", f"user={USER}"] if has_login else []
        address = f"tcp://127.0.0.1:{broker.ports['native']}"
        command = ["taskset", "-c", ",".join(map(str, LOAD_CORES)), broker.program, "-s", address, *login, *load]
        # Without the folder of the administrator's token, the load is that of the limited user.
        env = {**os.environ, "XDG_RUNTIME_DIR": os.path.join(broker.state.name, "none"), "THALWEG_PASSWORD": PASSWORD}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        if done.returncode:
            peer.fail(f"native load: {done.stderr}")
        return json.loads(report.read().splitlines()[-1])["published_per_s"]


def kafka_rate(port, has_login, seconds):
    """Records per second of librdkafka, until each is acknowledged."""
    import confluent_kafka

    failed = []
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "acks": 1, "linger.ms": 5, "compression.type": "none",
                "queue.buffering.max.messages": 1_000_000, "delivery.report.only.error": True,
                "error_cb": failed.append, "on_delivery": lambda error, _: failed.append(error)}
    if has_login:
        settings.update({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER,
                         "sasl.password": PASSWORD})
    producer = confluent_kafka.Producer(settings)
    value = b"x" * RECORD_BYTES
    producer.produce(TOPIC, value)
    producer.flush(raw.PATIENCE_SECONDS)
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        try:
            for _ in range(1000):
                producer.produce(TOPIC, value)
                count += 1
        except BufferError:
            producer.poll(0.01)
    left = producer.flush(raw.PATIENCE_SECONDS)
    if left or failed:
        raise raw.Refused(f"{left} records are not acknowledged: {failed[:1]}")
    return count / (time.monotonic() - begin)


def sqs_rate(port, seconds):
    """SendMessage calls per second over several connections, with one in flight on each. All requests are signed."""
    chosen = selectors.DefaultSelector()
    clients = [raw.Sqs(port) for _ in range(SQS_CONNECTIONS)]
    bodies = [f"{number:04}" + "x" * RECORD_BYTES for number in range(SQS_BODIES)]
    requests = [clients[0].publish_request("bench", body, (USER, PASSWORD)) for body in bodies]
    for number, client in enumerate(clients):
        chosen.register(client.socket, selectors.EVENT_READ, client)
        client.send(requests[number % SQS_BODIES])
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for key, _ in chosen.select(raw.PATIENCE_SECONDS):
            key.data.published("bench")
            count += 1
            key.data.send(requests[count % SQS_BODIES])
    return count / (time.monotonic() - begin)


def redis_rate(broker, test, has_login, seconds):
    """Commands per second of redis-benchmark, with 16 in flight on each of 50 connections."""
    command = ["taskset", "-c", ",".join(map(str, LOAD_CORES)), "redis-benchmark", "-p", str(broker.ports["redis"])]
    command += ["-t", test, "-n", str(max(10_000, int(seconds * 500_000))), "-P", "16", "-c", "50", "-d", "64"]
    command += ["-r", "100000", "-q", *(["--user", USER, "-a", PASSWORD] if has_login else [])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rates = re.findall(r"([\d.]+) requests per second", output)
    return float(rates[-1]) if rates else peer.fail(f"redis-benchmark says: {output}")


def rates_of(program, variant, seconds):
    """Returns the rates of all loads on one broker."""
    settings, entries = VARIANTS[variant]
    has_login = bool(settings)
    with Broker(program, settings, entries) as broker:
        return {
            "native publish": native_rate(broker, has_login, seconds),
            "Kafka produce": on_cores(LOAD_CORES, kafka_rate, broker.ports["kafka"], has_login, seconds),
            "SQS SendMessage": on_cores(LOAD_CORES, sqs_rate, broker.ports["sqs"], seconds),
            "Redis SET": redis_rate(broker, "set", has_login, seconds),
            "Redis GET": redis_rate(broker, "get", has_login, seconds),
        }


def rates(args):
    rounds = []
    for number in range(args.rounds):
        order = list(VARIANTS) if number % 2 == 0 else list(reversed(VARIANTS))
        rounds.append({variant: rates_of(args.program, variant, args.seconds) for variant in order})
        progress("rates", number, args)
    rows = []
    for load in rounds[0]["open"]:
        row = {f"{variant}_per_s": median(each[variant][load] for each in rounds) for variant in VARIANTS}
        for before, variant in (("open", "logins"), ("logins", "limited")):
            row |= spread([each[variant][load] / each[before][load] for each in rounds], f"{variant}_ratio")
        rows.append({"load": load, **row})
    return rows


# Logins


def authority(folder):
    """Creates an authority, and certificates of the broker and of the user."""
    def openssl(*command):
        subprocess.run(["openssl", *command], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, subject, extension in (("broker", "localhost", "subjectAltName=DNS:localhost"),
                                     ("client", USER, "extendedKeyUsage=clientAuth")):
        openssl("req", *key, "-subj", f"/CN={subject}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        with open(os.path.join(folder, "extension"), "w") as file:
            file.write(extension)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
                "-extfile", "extension", "-out", f"{name}.pem")


def tls_context(folder, has_certificate):
    context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
    if has_certificate:
        context.load_cert_chain(os.path.join(folder, "client.pem"), os.path.join(folder, "client.key"))
    return context


def login(kind, port, folder, token, salted):
    """Opens a connection, logs in, and closes it."""
    tls = tls_context(folder, kind == "certificate") if kind in ("TLS", "certificate") else None
    client = raw.Kafka(port, tls)
    match kind:
        case "TLS":
            client.call(raw.API_VERSIONS, b"")
        case "certificate":
            client.check_logged_in()
        case "SCRAM":
            client.log_in_scram(USER, PASSWORD, salted)
        case "token":
            client.log_in_token(token)
    client.close()


def logins_for(kind, port, folder, token, seconds):
    """Returns the number of logins in this time, after one that is not counted."""
    salted = {}
    login(kind, port, folder, token, salted)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        login(kind, port, folder, token, salted)
        count += 1
    return count


def logins(args):
    """Returns logins per second of the broker's processor time, for each way to log in."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        authority(folder)
        files = [f"{key}={os.path.join(folder, name)}" for key, name in
                 (("tls_cert", "broker.pem"), ("tls_key", "broker.key"), ("tls_client_ca", "ca.pem"))]
        for number in range(args.rounds):
            with Broker(args.program, [*LOCKED, *files], ENTRIES) as broker:
                token = broker.run("token", "create", USER).split()[0]
                for kind in ("TLS", "certificate", "SCRAM", "token"):
                    before, begin = broker.cpu_seconds(), time.monotonic()
                    work = [started_on(LOAD_CORES, logins_for, kind, broker.ports["kafka"], folder, token, args.seconds)
                            for _ in range(LOGIN_CONNECTIONS)]
                    count = sum(result() for result in work)
                    elapsed, cpu = time.monotonic() - begin, broker.cpu_seconds() - before
                    rows.setdefault(kind, []).append((count / elapsed, count / max(cpu, 0.01)))
            progress("logins", number, args)
    return [{"login": kind, "per_s": median(rate for rate, _ in each),
             **spread([of_core for _, of_core in each], "per_core_s")} for kind, each in rows.items()]


# Storm


def latencies_us(client, request, topic, seconds):
    """Publishes with one request in flight, and returns the latencies."""
    found, end = [], time.monotonic() + seconds
    while True:
        begin = time.perf_counter()
        if time.monotonic() >= end:
            return found
        client.send(request)
        client.published(topic)
        found.append((time.perf_counter() - begin) * 1e6)


def storm_latencies(port, seconds, signals):
    """Returns latencies before and during the storm, which begins after `seconds`."""
    client = raw.Kafka(port)
    client.log_in_plain(OTHER, PASSWORD)
    request = client.publish_request(TOPIC, raw.record_batch([b"x" * RECORD_BYTES]))
    latencies_us(client, request, TOPIC, min(1, seconds))
    before = latencies_us(client, request, TOPIC, seconds)
    started, ended = signals
    started.set()
    during = []
    while not ended.is_set():
        during += latencies_us(client, request, TOPIC, 0.05)
    return before, during


def storm_logins(port, count, started):
    """Logs in by SCRAM this many times, on a new connection each, once the storm has begun."""
    # The process of the measured client goes first where both share a core.
    os.nice(19)
    salted = {}
    login("SCRAM", port, None, None, salted)
    started.wait()
    for _ in range(count):
        login("SCRAM", port, None, None, salted)


def storm(args):
    rows = []
    for number in range(args.rounds):
        with Broker(args.program, LOCKED, ENTRIES) as broker:
            broker.run("acl", "add", f"User:{OTHER}", "write,describe", "topic", TOPIC)
            port = broker.ports["kafka"]
            signals = multiprocessing.Event(), multiprocessing.Event()
            share = args.logins // LOGIN_CONNECTIONS
            guests = [started_on(LOAD_CORES, storm_logins, port, share, signals[0]) for _ in range(LOGIN_CONNECTIONS)]
            measured = started_on([QUIET_CORE], storm_latencies, port, args.seconds, signals)
            signals[0].wait()
            begin = time.monotonic()
            for result in guests:
                result()
            seconds = time.monotonic() - begin
            signals[1].set()
            before, during = measured()
            rows.append({"before": before, "during": during, "per_s": share * LOGIN_CONNECTIONS / seconds})
        progress("storm", number, args)
    shown = {f"{when}_{name}_us": median(percentile(row[when], part) for row in rows)
             for when in ("before", "during") for name, part in (("p50", 0.5), ("p99", 0.99))}
    ratios = [percentile(row["during"], 0.99) / percentile(row["before"], 0.99) for row in rows]
    return [{"logins": args.logins, "per_s": median(row["per_s"] for row in rows), **shown,
             **spread(ratios, "p99_ratio")}]


# Neighbours


def client_of(door, port, user):
    """Returns a connection of a user to a door."""
    if door == "sqs":
        return raw.Sqs(port)
    client = {"native": raw.Native, "kafka": raw.Kafka}[door](port)
    client.log_in_plain(user, PASSWORD)
    return client


def request_of(door, client, size, user):
    """Returns a publish of one record of this size."""
    if door == "sqs":
        return client.publish_request("bench", "x" * size, (user, PASSWORD))
    return client.publish_request(TOPIC, raw.record_batch([b"x" * size]))


def victim(door, port, seconds):
    """Publishes one record at a time at a fixed rate. Returns latencies from the time at which each was due."""
    client = client_of(door, port, OTHER)
    request = request_of(door, client, RECORD_BYTES, OTHER)
    for _ in range(50):
        client.send(request)
        client.published(TOPIC)
    begin, found = time.perf_counter(), []
    for number in range(int(seconds * VICTIM_RATE)):
        due = begin + number / VICTIM_RATE
        time.sleep(max(0, due - time.perf_counter()))
        client.send(request)
        client.published(TOPIC)
        found.append((time.perf_counter() - due) * 1e6)
    return found


def neighbour(door, port, stopped):
    """Tries to publish ten times its quota, and returns the bytes per second that were accepted."""
    os.nice(19)
    client = client_of(door, port, USER)
    request = request_of(door, client, NEIGHBOUR_BYTES, USER)
    pause = NEIGHBOUR_BYTES / (QUOTA_BYTES * TIMES_QUOTA)
    begin = due = time.monotonic()
    accepted = 0
    while not stopped.is_set():
        due = max(due + pause, time.monotonic() - 1)
        time.sleep(max(0, due - time.monotonic()))
        client.send(request)
        if door == "sqs":
            status, body = client.status()
            if status != 200 and b"Throttl" not in body:
                raise raw.Refused(f"{status}: {body[:300]!r}")
            accepted += NEIGHBOUR_BYTES if status == 200 else 0
        else:
            client.published(TOPIC)
            accepted += NEIGHBOUR_BYTES
    return accepted / (time.monotonic() - begin)


def neighbour_run(args, door, is_noisy):
    """Returns the latencies of the victim, and the rate of its neighbour."""
    with Broker(args.program, LOCKED, ENTRIES) as broker:
        broker.run("acl", "add", f"User:{OTHER}", "write,describe", "topic", TOPIC)
        broker.run("acl", "add", f"User:{OTHER}", "write,describe", "queue", "bench")
        broker.run("quota", "set", "--user", USER, f"bytes_in={QUOTA_BYTES}")
        stopped = multiprocessing.Event()
        noise = started_on(LOAD_CORES, neighbour, door, broker.ports[door], stopped) if is_noisy else None
        if noise:
            # From then on the neighbour is over its quota, which saves a second.
            time.sleep(2)
        found = on_cores([QUIET_CORE], victim, door, broker.ports[door], args.seconds)
        stopped.set()
        return found, noise() if noise else 0


def neighbours(args):
    rows = []
    for door in ("native", "kafka", "sqs"):
        rounds = []
        for number in range(args.rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            rounds.append({is_noisy: neighbour_run(args, door, is_noisy) for is_noisy in order})
            progress(f"neighbours, {door}", number, args)
        alone, noisy = ([percentile(each[is_noisy][0], 0.99) for each in rounds] for is_noisy in (False, True))
        rows.append({"door": door, "alone_p99_us": median(alone), "noisy_p99_us": median(noisy),
                     **spread([b / a for a, b in zip(alone, noisy)], "ratio"),
                     "neighbour_bytes_per_s": median(each[True][1] for each in rounds)})
    return rows


# Reports


def median(values):
    return statistics.median(values)


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else peer.fail("nothing was measured")


def spread(values, name):
    return {name: median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def progress(part, number, args):
    print(f"{part}: round {number + 1} of {args.rounds}", file=sys.stderr)


def range_of(row, name, digits):
    return f"{row[name]:.{digits}f} ({row[f'{name}_min']:.{digits}f} to {row[f'{name}_max']:.{digits}f})"


TABLES = {
    "rates": (
        "| Load | open | logins | limited user | logins to open (range) | limited to logins (range) |\n"
        "|---|---:|---:|---:|---:|---:|",
        lambda row: [row["load"], *(f"{row[f'{variant}_per_s']:,.0f}/s" for variant in VARIANTS),
                     range_of(row, "logins_ratio", 3), range_of(row, "limited_ratio", 3)],
    ),
    "logins": (
        "| Login | measured | per core (range) |\n|---|---:|---:|",
        lambda row: [row["login"], f"{row['per_s']:,.0f}/s", f"{range_of(row, 'per_core_s', 0)}/s"],
    ),
    "storm": (
        "| Logins | rate | p50 before, during | p99 before, during | ratio of p99 (range) |\n|---|---:|---:|---:|---:|",
        lambda row: [f"{row['logins']:,}", f"{row['per_s']:,.0f}/s",
                     f"{row['before_p50_us']:.0f}, {row['during_p50_us']:.0f} us",
                     f"{row['before_p99_us']:.0f}, {row['during_p99_us']:.0f} us", range_of(row, "p99_ratio", 2)],
    ),
    "neighbours": (
        "| Door | p99 alone | p99 next to it | ratio (range) | accepted from it |\n|---|---:|---:|---:|---:|",
        lambda row: [row["door"], f"{row['alone_p99_us']:.0f} us", f"{row['noisy_p99_us']:.0f} us",
                     range_of(row, "ratio", 2), f"{row['neighbour_bytes_per_s'] / (1 << 20):.2f} MiB/s"],
    ),
}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("program", help="the program thalweg, in release mode")
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=5, help="duration of each load")
    add("--logins", type=int, default=10_000, help="number of logins of the storm")
    add("--json", metavar="FILE", help="write all figures to this file")
    args = parser.parse_args()
    if args.rounds < 1 or args.seconds <= 0 or args.logins < LOGIN_CONNECTIONS:
        parser.error(f"--rounds and --seconds must be above 0, and --logins at least {LOGIN_CONNECTIONS}")
    return args


def main():
    args = read_arguments()
    peer.end_with_parent()
    measure = {"rates": rates, "logins": logins, "storm": storm, "neighbours": neighbours}
    machine = peer.machine()
    version = subprocess.run([args.program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    figures = {"version": version, "machine": machine, "rounds": args.rounds, "seconds": args.seconds}
    for part in args.parts:
        figures[part] = measure[part](args)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)
    print(f"{version}; {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; "
          f"medians of {args.rounds} rounds of {args.seconds:g} s")
    for part in args.parts:
        head, cells = TABLES[part]
        print(f"\n{head}")
        for row in figures[part]:
            print(f"| {' | '.join(cells(row))} |")


if __name__ == "__main__":
    main()
