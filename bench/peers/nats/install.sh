#!/usr/bin/env bash
# Installs the pinned nats-server and builds nats-load, both into ./bin.
set -euo pipefail

version=v2.15.2

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export GOBIN=$here/bin
mkdir -p "$GOBIN"

if [[ $("$GOBIN/nats-server" --version 2>/dev/null || true) == "nats-server: $version" ]]; then
  echo "nats-server $version: already in $GOBIN"
else
  echo "nats-server $version: installing into $GOBIN"
  go install "github.com/nats-io/nats-server/v2@$version"
fi

echo "nats-load: building into $GOBIN"
go -C "$here" build -o "$GOBIN/nats-load" .
