#!/usr/bin/env bash
# Builds nacelle-echo into ./target/release, if cargo is there and reaches the crates that Cargo.lock names.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v cargo >/dev/null; then
  echo "nacelle-echo: cargo is missing, and nothing else can build it" >&2
  exit 1
fi

# From here, so that the toolchain of this repository builds it.
cd "$here"
version=$(sed -n '/^name = "nacelle"$/{n;s/^version = "\(.*\)"$/\1/p;}' Cargo.lock)
echo "nacelle-echo: building on nacelle $version into $here/target/release"
cargo build --release --locked
