#!/usr/bin/env bash
# Ends the broker that start.sh has started with its data in DIR, and keeps DIR: stop.sh DIR
set -euo pipefail

stop_seconds=20

[[ $# -eq 1 && -e $1/pid ]] || { echo 'usage: stop.sh DIR, with the DIR of start.sh' >&2; exit 2; }
pid=$(<"$1/pid")
dir=$(cd "$1" && pwd)

# Another process may have this id by now.
is_ours() {
  tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$dir/server.properties"
}

is_ours || exit 0
kill "$pid"
for ((begin = SECONDS; SECONDS - begin < stop_seconds;)); do
  is_ours || exit 0
  sleep 0.1
done
echo "stop.sh: the broker did not end within $stop_seconds s of SIGTERM" >&2
kill -9 "$pid"
