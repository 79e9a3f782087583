#!/usr/bin/env bash
# Runs a class of ./libs: java.sh CLASS ARGUMENTS. KAFKA_HEAP sets the heap of the process.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ -d $here/libs ]] || { echo 'kafka: libs is missing; run install.sh first' >&2; exit 1; }
read -ra heap <<<"${KAFKA_HEAP:--Xms256m -Xmx1g}"
exec java "${heap[@]}" -XX:+UseG1GC -Dlog4j2.configurationFile="$here/log4j2.xml" -cp "$here/libs/*" "$@"
