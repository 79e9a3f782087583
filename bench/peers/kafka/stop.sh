#!/usr/bin/env bash
# Ends what start.sh has started with its data in DIR, a broker or a cluster, and keeps DIR: stop.sh DIR
set -euo pipefail

stop_seconds=20

[[ $# -eq 1 && -d $1 ]] || { echo 'usage: stop.sh DIR, with the DIR of start.sh' >&2; exit 2; }

# Another process may have this id by now.
is_ours() {
  tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -qxF "$2/server.properties"
}

for file in "$1/pid" "$1"/*/pid; do
  [[ -e $file ]] || continue
  pid=$(<"$file")
  dir=$(cd "$(dirname "$file")" && pwd)
  is_ours "$pid" "$dir" || continue
  kill "$pid"
  for ((begin = SECONDS; SECONDS - begin < stop_seconds;)); do
    is_ours "$pid" "$dir" || continue 2
    sleep 0.1
  done
  echo "stop.sh: the broker did not end within $stop_seconds s of SIGTERM" >&2
  kill -9 "$pid"
done
