#!/usr/bin/env bash
# Makes a data directory with an old program, for `crates/broker/tests/it/old_directory.rs`. The program is killed, so
# that the directory has to be recovered from its journal. Prints the time at which the test has to open it.
#
# Usage: make.sh PROGRAM ARCHIVE.tar.gz; it needs kcat and redis-cli.
set -euo pipefail

readonly program=$1 archive=$2
folder=$(mktemp -d)
readonly folder native=127.0.0.1:17400 kafka=127.0.0.1:17402 redis=17404
trap 'kill -9 "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

"$program" serve --data "$folder/data" --native "$native" --kafka "$kafka" --redis "127.0.0.1:$redis" \
    --http off --pubsub off --sqs off --ready-file "$folder/ready" >"$folder/log" 2>&1 &
server=$!
until [ -s "$folder/ready" ]; do sleep 0.1; done
thalweg() { "$program" "$@" --server "$native"; }

# Topics of each storage, with keys; more partitions; compaction.
thalweg topic create orders --partitions 2 --storage disk
for i in 1 2 3 4; do echo "order $i" | kcat -b "$kafka" -P -t orders -p $((i % 2)) -k "key $i"; done
thalweg topic add-partitions orders 1
echo 'order 5' | kcat -b "$kafka" -P -t orders -p 2 -k 'key 5'
thalweg topic create latest --storage disk --compact
for i in 1 2 3; do echo "value $i" | kcat -b "$kafka" -P -t latest -k key; done
thalweg topic create table --storage sqlite
echo 'a row' | thalweg publish table
thalweg topic create deleted --storage disk
thalweg topic delete deleted

# A transaction, whose offsets are stable.
echo 'in a transaction' | kcat -b "$kafka" -P -t committed -X transactional.id=transaction

# A queue: one message is acknowledged, one is leased, one was never received.
thalweg queue create jobs --lease 1h
printf 'first\nsecond\nthird\n' | thalweg queue send jobs
thalweg queue receive jobs --ack
thalweg queue receive jobs

# Offsets of a group, users and access control.
thalweg group reset billing --topic orders --partition 1 --to 1
echo secret | thalweg user add ann --mechanism SCRAM-SHA-256
thalweg acl add User:ann read topic orders

# A durable cache, and a stream with a group whose consumer has a pending entry.
thalweg cache create sessions --durable
thalweg cache put sessions alice 'one coffee'
thalweg cache put sessions bob 'one tea'
thalweg cache del sessions bob
redis() { redis-cli -p "$redis" "$@"; }
redis xadd visits 1-1 page a
redis xadd visits 1-2 page b
redis xgroup create visits readers 0
redis xreadgroup group readers one count 1 streams visits '>'

kill -9 "$server"
wait "$server" || true
tar -C "$folder" --sparse --sort=name --owner=0 --group=0 -czf "$archive" data
echo "made at $(date +%s%3N) ms since 1970"
