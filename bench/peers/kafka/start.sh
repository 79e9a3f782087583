#!/usr/bin/env bash
# Starts a broker on free ports, with its data in DIR, which must be new: start.sh DIR
# Prints `listening PORT` when it accepts requests; DIR/pid has its process id, DIR/log its log. stop.sh DIR ends it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wait_seconds=120

[[ $# -eq 1 ]] || { echo 'usage: start.sh DIR' >&2; exit 2; }
mkdir "$1"
dir=$(cd "$1" && pwd)

fail() {
  echo "start.sh: $1; the end of $dir/log:" >&2
  tail -n 20 "$dir/log" >&2 || true
  "$here/stop.sh" "$dir" 2>/dev/null || true
  exit 1
}

# Ports that are currently free. If another process takes one first, the broker exits with an error.
read -r port controller_port < <(PYTHONPATH="$here/.." python3 -c 'import peer; print(*peer.free_ports(2))')
sed -e "s|@DIR@|$dir|g; s|@PORT@|$port|g; s|@CONTROLLER_PORT@|$controller_port|g" \
  "$here/server.properties.in" >"$dir/server.properties"

id=$("$here/java.sh" kafka.tools.StorageTool random-uuid 2>>"$dir/log")
"$here/java.sh" kafka.tools.StorageTool format -t "$id" -c "$dir/server.properties" >>"$dir/log" 2>&1 ||
  fail 'the data directory cannot be prepared'
KAFKA_HEAP=${KAFKA_SERVER_HEAP:--Xms512m -Xmx1g} setsid nohup "$here/java.sh" kafka.Kafka "$dir/server.properties" \
  >>"$dir/log" 2>&1 </dev/null &
echo $! >"$dir/pid"

# A port that accepts connections is not enough: the broker must be registered with its controller.
for ((begin = SECONDS; SECONDS - begin < wait_seconds;)); do
  kill -0 "$(<"$dir/pid")" 2>/dev/null || fail 'the broker has ended'
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null &&
    "$here/java.sh" org.apache.kafka.tools.BrokerApiVersionsCommand --bootstrap-server "127.0.0.1:$port" \
      >/dev/null 2>&1; then
    echo "listening $port"
    exit 0
  fi
  sleep 0.1
done
fail "the broker was not ready after $wait_seconds s"
