#!/usr/bin/env bash
# Builds nacelle-echo into ./target/release. Requires cargo, and access to the crates that Cargo.lock names.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if ! command -v cargo >/dev/null; then
  echo "nacelle-echo: cargo is missing: install it with rustup first" >&2
  exit 1
fi

# In this folder, so that the toolchain of this repository builds it.
cd "$here"
version=$(sed -n '/^name = "nacelle"$/{n;s/^version = "\(.*\)"$/\1/p;}' Cargo.lock)
echo "nacelle-echo: building on nacelle $version into $here/target/release"
cargo build --release --locked
