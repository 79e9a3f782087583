#!/usr/bin/env bash
# Runs ElasticMQ on a port of 127.0.0.1 until it is stopped: elasticmq.sh PORT. ELASTICMQ_JAVA sets options of the JVM.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 1 ]] || { echo 'usage: elasticmq.sh PORT' >&2; exit 2; }
[[ -d $here/libs ]] || { echo 'elasticmq: libs is missing; run install.sh first' >&2; exit 1; }
read -ra options <<<"${ELASTICMQ_JAVA:-}"
exec java "${options[@]}" -Dconfig.file="$here/elasticmq.conf" -Dlogback.configurationFile="$here/logback.xml" \
  -Drest-sqs.bind-port="$1" -Dnode-address.port="$1" -cp "$here/libs/*" org.elasticmq.server.Main
