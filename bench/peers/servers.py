"""Shared code that starts systems for a comparison: each server is a process of this machine on free ports of loopback.

If another process takes a port first, the server ends, and the program that started it prints its log. Needs only
Linux and the standard library.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import peer

HERE = os.path.dirname(os.path.abspath(__file__))
START_SECONDS = 60
LOG_BYTES = 2000
DOORS = ["native", "http", "kafka", "pubsub", "redis", "sqs"]
# That of kafka/start.sh.
KAFKA_HEAP = "-Xms512m -Xmx1g"


class Servers:
    """Processes by name, each with its command, in a folder."""

    def __init__(self, folder):
        self.folder, self.commands, self.processes = folder, {}, {}

    def spawn(self, name):
        """Starts the server of this name, or starts it again after its end."""
        with open(os.path.join(self.folder, f"{name}.log"), "a") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder
            )

    def spawn_all(self, commands):
        self.commands = {name: [str(word) for word in command] for name, command in commands.items()}
        for name in commands:
            self.spawn(name)

    def until(self, is_true, why):
        end = time.monotonic() + START_SECONDS
        while not is_true():
            if time.monotonic() > end or any(process.poll() is not None for process in self.processes.values()):
                for name in self.processes:
                    with open(os.path.join(self.folder, f"{name}.log")) as log:
                        print(f"{name}: {log.read()[-LOG_BYTES:]}", file=sys.stderr)
                peer.fail(why)
            time.sleep(peer.LOOK_SECONDS)

    def end(self, name, how):
        """Ends a server, by `kill` or, which lets it hand over, by `term`."""
        if how == "kill":
            self.processes[name].kill()
        peer.stop(self.processes[name])

    def are_running(self):
        return all(process.poll() is None for process in self.processes.values())

    def stop(self):
        for process in self.processes.values():
            peer.stop(process)


def program(name):
    found = shutil.which(name)
    if not found:
        peer.fail(f"{name} is missing; run install.sh first")
    return found


def start_etcd(servers, nodes):
    """Starts etcd, and returns the URLs of its clients when every server says that it is healthy."""
    etcd, ports = program("etcd"), peer.free_ports(2 * nodes)
    clients, peers = ([f"http://127.0.0.1:{port}" for port in half] for half in (ports[::2], ports[1::2]))
    all_peers = ",".join(f"n{node}={url}" for node, url in enumerate(peers, 1))
    servers.spawn_all({
        f"n{node}": [
            etcd, "--name", f"n{node}", "--data-dir", os.path.join(servers.folder, f"n{node}"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", own, "--initial-advertise-peer-urls", own, "--initial-cluster", all_peers,
        ] for node, (client, own) in enumerate(zip(clients, peers), 1)
    })
    asked, healthy = b"GET /health HTTP/1.0\r\n\r\n", b"HTTP/1.0 200"
    servers.until(lambda: all(peer.answers(port, asked, healthy) for port in ports[::2]), "etcd does not start")
    return clients


def start_jetstream(servers, nodes, sync):
    """Starts nats-server, and returns the URLs of its clients when every server knows who leads.

    `sync` is `default`, or `always` to sync before each acknowledgement.
    """
    nats, ports, routes = program(os.path.join(HERE, "nats", "bin", "nats-server")), peer.free_ports(nodes), []
    if nodes > 1:
        routes = peer.free_ports(nodes)
    for node, port in enumerate(ports, 1):
        cluster = ""
        if routes:
            others = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes if route != routes[node - 1])
            cluster = f'cluster {{\n  name: bench\n  listen: "127.0.0.1:{routes[node - 1]}"\n  routes: [{others}]\n}}\n'
        synced = "sync_interval: always" if sync == "always" else ""
        with open(os.path.join(servers.folder, f"n{node}.conf"), "w") as file:
            file.write(f'server_name: n{node}\nlisten: "127.0.0.1:{port}"\n{cluster}'
                       f'jetstream {{\n  store_dir: "{servers.folder}/n{node}"\n  {synced}\n}}\n')
    servers.spawn_all({f"n{node}": [nats, "-c", f"n{node}.conf"] for node in range(1, nodes + 1)})
    servers.until(lambda: all(is_nats_ready(servers, name) for name in servers.commands), "nats-server does not start")
    return [f"nats://127.0.0.1:{port}" for port in ports]


def is_nats_ready(servers, name):
    """Returns True if the server accepts clients and, one of a cluster, knows who leads."""
    with open(os.path.join(servers.folder, f"{name}.log")) as log:
        text = log.read()
    # The first line is of the server that leads, the second of another.
    leads = ["Self is new JetStream cluster metadata leader", "JetStream cluster new metadata leader"]
    knows = "Starting JetStream cluster" not in text or any(line in text for line in leads)
    return knows and "Server is ready" in text


class Adopted:
    """A process that another program has started, with the methods of a child."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, 0)
            return None
        return 0

    def terminate(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self):
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds=math.inf):
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), seconds)
            time.sleep(peer.LOOK_SECONDS)


def start_kafka(servers, nodes):
    """Starts Kafka, and returns the addresses of its clients when every broker is registered."""
    folder, data = os.path.join(HERE, "kafka"), os.path.join(servers.folder, "kafka")
    started = subprocess.run([os.path.join(folder, "start.sh"), data, str(nodes)], stdout=subprocess.PIPE, text=True)
    if started.returncode != 0:
        peer.fail("Kafka does not start")
    for node in range(1, nodes + 1):
        own = data if nodes == 1 else os.path.join(data, str(node))
        with open(os.path.join(own, "pid")) as file:
            servers.processes[f"n{node}"] = Adopted(int(file.read()))
        heap = os.environ.get("KAFKA_SERVER_HEAP", KAFKA_HEAP)
        java = os.path.join(folder, "java.sh")
        servers.commands[f"n{node}"] = ["env", f"KAFKA_HEAP={heap}", java, "kafka.Kafka", f"{own}/server.properties"]
    return [f"127.0.0.1:{port}" for port in started.stdout.split()[-1].split(",")]


class Thalweg(Servers):
    """Brokers of Thalweg: alone, or the nodes of a cluster."""

    def __init__(self, folder, program):
        super().__init__(folder)
        self.program, self.doors = program, {}

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            peer.fail(f"{' '.join(map(str, arguments))} ended with {done.returncode}")
        return done.stdout

    def serve(self, name, *arguments):
        ready, data = os.path.join(self.folder, f"{name}.ready"), os.path.join(self.folder, name)
        self.doors[name] = {door: f"127.0.0.1:{port}" for door, port in zip(DOORS, peer.free_ports(len(DOORS)))}
        doors = [word for door, address in self.doors[name].items() for word in (f"--{door}", address)]
        self.commands[name] = [self.program, "serve", "--data", data, "--ready-file", ready, *doors, *arguments]
        self.spawn(name)
        self.until(lambda: os.path.exists(ready), f"{name} is not ready")

    def start_cluster(self, nodes):
        ports = peer.free_ports(nodes)
        for node, port in enumerate(ports, 1):
            data, at = os.path.join(self.folder, f"n{node}"), f"127.0.0.1:{port}"
            if node == 1:
                self.call("cluster", "init", "--data", data, "--advertise", at)
            else:
                token = self.call("cluster", "token", "--data", os.path.join(self.folder, "n1")).strip()
                self.call("cluster", "join", token, "--data", data, "--advertise", at)
            self.serve(f"n{node}", "--set", f"cluster_status=127.0.0.1:{peer.free_ports(1)[0]}")
        self.until(lambda: sum(node["is_voter"] for node in self.status()["nodes"]) == nodes, "the nodes do not vote")

    def status(self):
        native = ",".join(doors["native"] for doors in self.doors.values())
        command = [self.program, "--json", "--server", native, "cluster", "status"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        with contextlib.suppress(ValueError):
            return json.loads(done.stdout)
        return {"leader": None, "nodes": []}

    def address(self, door="native"):
        """Returns a door of the node that leads, which clients of the native door find by themselves."""
        status = self.status() if len(self.doors) > 1 else {"nodes": []}
        for node in status["nodes"]:
            if node["is_leader"]:
                return node["doors"][door]
        return next(iter(self.doors.values()))[door]
