#!/usr/bin/env bash
# Downloads ElasticMQ, in the version that pom.xml pins, from Maven Central into ./libs (43 MB), and builds sqs-load
# into ./bin.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -nE 's|.*<elasticmq\.version>(.*)</elasticmq\.version>.*|\1|p' "$here/pom.xml")

command -v go >/dev/null || { echo 'sqs-load: Go 1.26 is missing (Debian: apt-get install golang)' >&2; exit 1; }
echo "sqs-load: building into $here/bin"
mkdir -p "$here/bin"
go -C "$here" build -o "$here/bin/sqs-load" .

if [[ -e $here/libs/elasticmq-server_3-$version.jar ]]; then
  echo "elasticmq $version: already in $here/libs"
  exit 0
fi
command -v java >/dev/null || { echo 'elasticmq: a Java runtime, 11 or later, is missing (Debian: openjdk-17-jre-headless)' >&2; exit 1; }
if ! command -v mvn >/dev/null; then
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo 'elasticmq: Maven is missing (Debian: apt-get install maven)' >&2
    exit 1
  fi
  apt-get install -y --no-install-recommends maven
fi
echo "elasticmq $version: downloading its jars into $here/libs"
# Only a complete set gets this name: an interrupted download is repeated.
rm -rf "$here/libs" "$here/libs.part"
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$here/libs.part"
mv "$here/libs.part" "$here/libs"
