#!/bin/sh
# Installs the newest release of Thalweg, after checking its checksum:
#   curl --proto '=https' --tlsv1.2 -fsSL https://github.com/thalweg/thalweg/releases/latest/download/install.sh | sh
#
# Variables:
#   THALWEG_VERSION   version to install, such as 0.1.0; by default the newest
#   THALWEG_BIN       folder of the program; by default ~/.local/bin, or /usr/local/bin for root
#   THALWEG_BASE_URL  where the releases are; by default the project's own
set -eu

fail() {
    echo "install: $*" >&2
    exit 1
}

has() {
    command -v "$1" > /dev/null 2>&1
}

# Prints the name of this machine's build.
target() {
    [ "$(uname -s)" = Linux ] || fail "there are builds for Linux only; with Rust: cargo install --locked thalweg"
    case "$(uname -m)" in
        x86_64 | amd64) echo x86_64-unknown-linux-musl ;;
        aarch64 | arm64) echo aarch64-unknown-linux-musl ;;
        *) fail "there is no build for $(uname -m); with Rust: cargo install --locked thalweg" ;;
    esac
}

# Fetches a URL into a file.
fetch() {
    if has curl; then
        curl --fail --silent --show-error --location --retry 3 --max-time 600 --output "$2" "$1"
    elif has wget; then
        wget --quiet --tries=3 --timeout=60 --output-document="$2" "$1"
    else
        fail "curl or wget is needed"
    fi || fail "cannot fetch $1"
}

# Prints the SHA-256 of a file.
checksum() {
    if has sha256sum; then
        sha256sum "$1"
    elif has shasum; then
        shasum -a 256 "$1"
    elif has openssl; then
        openssl dgst -sha256 -r "$1"
    else
        fail "sha256sum, shasum or openssl is needed to check the download"
    fi | cut -d ' ' -f 1
}

main() {
    base=${THALWEG_BASE_URL:-https://github.com/thalweg/thalweg/releases}
    version=${THALWEG_VERSION:-latest}
    if [ "$version" = latest ]; then
        from=$base/latest/download
    else
        from=$base/download/v$version
    fi
    if [ -n "${THALWEG_BIN:-}" ]; then
        bin=$THALWEG_BIN
    elif [ "$(id -u)" = 0 ]; then
        bin=/usr/local/bin
    else
        bin=$HOME/.local/bin
    fi
    target=$(target)
    archive=thalweg-$target.tar.gz
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 1' HUP INT TERM

    echo "install: fetching $from/$archive" >&2
    fetch "$from/$archive" "$folder/$archive"
    fetch "$from/$archive.sha256" "$folder/$archive.sha256"
    expected=$(cut -d ' ' -f 1 "$folder/$archive.sha256")
    case $expected in
        *[!0-9a-f]* | '') fail "$archive.sha256 has no checksum" ;;
    esac
    found=$(checksum "$folder/$archive")
    [ "$found" = "$expected" ] || fail "the checksum of $archive is $found, expected $expected: nothing was installed"

    tar -xzf "$folder/$archive" -C "$folder"
    program=$folder/thalweg-$target/bin/thalweg
    [ -f "$program" ] || fail "$archive has no program"
    mkdir -p "$bin"
    # A running broker keeps its old program: the new one gets the name at once.
    cp "$program" "$bin/.thalweg.new"
    chmod 755 "$bin/.thalweg.new"
    mv -f "$bin/.thalweg.new" "$bin/thalweg"
    echo "install: $("$bin/thalweg" --version) is in $bin" >&2
    case :$PATH: in
        *:"$bin":*) echo "install: next: thalweg init && thalweg serve" >&2 ;;
        *) echo "install: add $bin to PATH; next: $bin/thalweg init && $bin/thalweg serve" >&2 ;;
    esac
}

main
