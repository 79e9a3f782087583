#!/usr/bin/env bash
# Builds failover-load into ./bin.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
echo "failover-load: building into $here/bin"
mkdir -p "$here/bin"
go -C "$here" build -o "$here/bin/failover-load" .
