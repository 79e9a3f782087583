#!/usr/bin/env bash
# Starts a broker on free ports, with its data in DIR, which must be new, or a cluster of NODES brokers on this machine:
# start.sh DIR [NODES]
# Prints `listening PORT`, or PORT,PORT.. of a cluster, when all accept requests. DIR/pid has the process id, DIR/log the
# log; those of a cluster are in DIR/1, DIR/2.. stop.sh DIR ends it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wait_seconds=120

[[ $# -eq 1 || $# -eq 2 ]] || { echo 'usage: start.sh DIR [NODES]' >&2; exit 2; }
nodes=${2:-1}
mkdir "$1"
root=$(cd "$1" && pwd)

folder() {
  if ((nodes == 1)); then echo "$root"; else echo "$root/$1"; fi
}

fail() {
  echo "start.sh: $1; the end of $2/log:" >&2
  tail -n 20 "$2/log" >&2 || true
  "$here/stop.sh" "$root" 2>/dev/null || true
  exit 1
}

# Ports that are currently free. If another process takes one first, the broker exits with an error.
read -ra ports < <(PYTHONPATH="$here/.." python3 -c "import peer; print(*peer.free_ports(2 * $nodes))")
voters=''
for ((node = 1; node <= nodes; node++)); do
  voters+="${voters:+,}$node@127.0.0.1:${ports[nodes + node - 1]}"
done
majority=$((nodes / 2 + 1))
id=$("$here/java.sh" kafka.tools.StorageTool random-uuid 2>>"$root/log")
for ((node = 1; node <= nodes; node++)); do
  dir=$(folder "$node")
  mkdir -p "$dir"
  sed -e "s|@DIR@|$dir|g; s|@NODE@|$node|g; s|@PORT@|${ports[node - 1]}|g; s|@CONTROLLER_PORT@|${ports[nodes + node - 1]}|g" \
    -e "s|@VOTERS@|$voters|g; s|@REPLICAS@|$nodes|g; s|@MAJORITY@|$majority|g" \
    "$here/server.properties.in" >"$dir/server.properties"
  "$here/java.sh" kafka.tools.StorageTool format -t "$id" -c "$dir/server.properties" >>"$dir/log" 2>&1 ||
    fail 'the data directory cannot be prepared' "$dir"
  KAFKA_HEAP=${KAFKA_SERVER_HEAP:--Xms512m -Xmx1g} setsid nohup "$here/java.sh" kafka.Kafka "$dir/server.properties" \
    >>"$dir/log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
done

# A port that accepts connections is not enough: each broker must be registered with the controller.
listening=''
begin=$SECONDS
for ((node = 1; node <= nodes; node++)); do
  dir=$(folder "$node")
  port=${ports[node - 1]}
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null &&
    "$here/java.sh" org.apache.kafka.tools.BrokerApiVersionsCommand --bootstrap-server "127.0.0.1:$port" \
      >/dev/null 2>&1; do
    kill -0 "$(<"$dir/pid")" 2>/dev/null || fail 'the broker has ended' "$dir"
    ((SECONDS - begin < wait_seconds)) || fail "the broker was not ready after $wait_seconds s" "$dir"
    sleep 0.1
  done
  listening+="${listening:+,}$port"
done
echo "listening $listening"
