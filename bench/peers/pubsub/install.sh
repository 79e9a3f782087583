#!/usr/bin/env bash
# Builds pubsub-load into ./bin. Google's emulator is in the package google-cloud-cli-pubsub-emulator.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v go >/dev/null || { echo 'pubsub-load: Go 1.26 is missing (Debian: apt-get install golang)' >&2; exit 1; }
echo "pubsub-load: building into $here/bin"
mkdir -p "$here/bin"
go -C "$here" build -o "$here/bin/pubsub-load" .
