#!/usr/bin/env python3
"""Starts Apache Kafka, to prove the suite against it: a scenario that fails there is wrong.

    peer.py [--until-eof] DIR     starts a broker on free ports with its data in DIR, which must not exist yet, until
                                  SIGTERM or until the input ends

DIR/ready.json then names its listeners, in the keys that `cargo xtask compat kafka` takes as options.
The jars are those of pom.xml in target/compat/jars.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
JARS = HERE.parents[2] / "target/compat/jars"
USER, PASSWORD = "alice", "alice-secret"
READY_SECONDS = 120

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=OPEN://127.0.0.1:{open},SASL://127.0.0.1:{sasl},SASLTLS://127.0.0.1:{sasl_tls},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=OPEN:PLAINTEXT,SASL:SASL_PLAINTEXT,SASLTLS:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=OPEN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config={plain}
listener.name.sasltls.plain.sasl.jaas.config={plain}
listener.name.sasl.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasl.scram-sha-512.sasl.jaas.config={scram}
listener.name.sasltls.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasltls.scram-sha-512.sasl.jaas.config={scram}
ssl.keystore.type=PEM
ssl.keystore.location={dir}/keystore.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
super.users=User:ANONYMOUS
log.dirs={dir}/data
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def java(*arguments, heap="256m"):
    log = f"-Dlog4j2.configurationFile={HERE}/log4j2.xml"
    return ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", log, "-cp", f"{JARS}/*", *map(str, arguments)]


def end_with_input():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    *options, directory = sys.argv[1:]
    directory = pathlib.Path(directory).resolve()
    directory.mkdir()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "--until-eof" in options:
        threading.Thread(target=end_with_input, daemon=True).start()
    key, certificate, log = directory / "key.pem", directory / "ca.pem", directory / "log"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    with open(log, "a") as out:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost",
             "-addext", names, "-keyout", key, "-out", certificate], check=True, stdout=out, stderr=out)
        (directory / "keystore.pem").write_text(key.read_text() + certificate.read_text())
        names = ["open", "sasl", "sasl_tls", "controller"]
        ports = dict(zip(names, free_ports(len(names))))
        module = "org.apache.kafka.common.security"
        plain = f'{module}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        scram = f"{module}.scram.ScramLoginModule required;"
        properties = directory / "server.properties"
        properties.write_text(PROPERTIES.format(dir=directory, plain=plain, scram=scram, **ports))
        users = [f"--add-scram=SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
        subprocess.run(java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", properties, *users),
                       check=True, stdout=out, stderr=out)
        broker = subprocess.Popen(java("kafka.Kafka", properties, heap="1g"), stdout=out, stderr=out,
                                  stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        begin = time.monotonic()
        while "Kafka Server started" not in log.read_text():
            if broker.poll() is not None or time.monotonic() - begin > READY_SECONDS:
                sys.exit(f"the broker did not start: see {log}")
            time.sleep(0.1)
        ready = {name: f"127.0.0.1:{port}" for name, port in ports.items() if name != "controller"}
        ready |= {"ca": str(certificate), "user": USER, "password": PASSWORD}
        part = directory / "ready.part"
        part.write_text(json.dumps(ready))
        part.rename(directory / "ready.json")
        broker.wait()
    finally:
        broker.terminate()
        broker.wait()


main()
