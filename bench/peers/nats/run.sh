#!/usr/bin/env bash
# Runs nats-load, with the given arguments, against a separate nats-server on
# loopback. Prints the result of nats-load as one line of JSON, then the CPU
# seconds and the peak memory of the server as a second line.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for program in nats-server nats-load; do
  if [[ ! -x $here/bin/$program ]]; then
    echo "run.sh: bin/$program is missing; run install.sh first" >&2
    exit 1
  fi
done

scratch=$(mktemp -d)
server='' load=''

cleanup() {
  for pid in $load $server; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  echo "run.sh: $1; the end of the server's log:" >&2
  tail -n 20 "$scratch/log" >&2 || true
  exit 1
}

# User and system time of process $1 so far, in clock ticks: fields 14 and 15
# of its stat, counted from after the command name, which may contain spaces.
cpu_ticks() {
  local stat
  stat=$(<"/proc/$1/stat")
  read -ra stat <<<"${stat##*) }"
  echo $((stat[11] + stat[12]))
}

# With port -1 the server selects a free port and writes its address to a file.
"$here/bin/nats-server" -a 127.0.0.1 -p -1 --ports_file_dir "$scratch" >"$scratch/log" 2>&1 &
server=$!

port=''
for ((tries = 0; tries < 200; tries++)); do
  kill -0 "$server" 2>/dev/null || fail 'nats-server ended early'
  port=$(sed -nE 's|.*nats://127\.0\.0\.1:([0-9]+).*|\1|p' "$scratch"/*.ports 2>/dev/null || true)
  if [[ -n $port ]] && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    break
  fi
  port=''
  sleep 0.05
done
[[ -n $port ]] || fail 'nats-server accepts no connections'

before=$(cpu_ticks "$server")
"$here/bin/nats-load" "$@" -json -url "nats://127.0.0.1:$port" >"$scratch/result" &
load=$!
status=0
wait "$load" || status=$?
load=''

kill -0 "$server" 2>/dev/null || fail 'nats-server died during the run'
cat "$scratch/result"
[[ -s $scratch/result ]] || exit "$status"
after=$(cpu_ticks "$server")
rss=$(awk '$1 == "VmHWM:" { print $2 }' "/proc/$server/status")
awk -v ticks=$((after - before)) -v hz="$(getconf CLK_TCK)" -v rss="$rss" \
  'BEGIN { printf "{\"server_cpu_seconds\":%.2f,\"server_rss_kib\":%d}\n", ticks / hz, rss }'
exit "$status"
