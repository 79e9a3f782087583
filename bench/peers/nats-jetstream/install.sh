#!/usr/bin/env bash
# Installs the nats-server that ../nats pins into ../nats/bin, and builds jetstream-load into ./bin.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
"$here/../nats/install.sh"
echo "jetstream-load: building into $here/bin"
mkdir -p "$here/bin"
go -C "$here" build -o "$here/bin/jetstream-load" .
