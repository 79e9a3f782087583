#!/usr/bin/env bash
# Installs Debian's etcd if it is missing, and builds etcd-load into ./bin.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v etcd >/dev/null; then
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo 'etcd: the server is missing (Debian: apt-get install etcd-server)' >&2
    exit 1
  fi
  apt-get install -y --no-install-recommends etcd-server
fi
echo "etcd-load: building into $here/bin"
mkdir -p "$here/bin"
go -C "$here" build -o "$here/bin/etcd-load" .
