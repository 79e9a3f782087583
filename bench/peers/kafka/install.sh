#!/usr/bin/env bash
# Downloads Apache Kafka, in the version that pom.xml pins, from Maven Central into ./libs (54 MB).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -nE 's|.*<kafka\.version>(.*)</kafka\.version>.*|\1|p' "$here/pom.xml")

if [[ -e $here/libs/kafka_2.13-$version.jar && -e $here/libs/kafka-tools-$version.jar ]]; then
  echo "kafka $version: already in $here/libs"
  exit 0
fi
command -v java >/dev/null || { echo 'kafka: a Java runtime, 17 or later, is missing (Debian: openjdk-17-jre-headless)' >&2; exit 1; }
if ! command -v mvn >/dev/null; then
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo 'kafka: Maven is missing (Debian: apt-get install maven)' >&2
    exit 1
  fi
  apt-get install -y --no-install-recommends maven
fi
echo "kafka $version: downloading its jars into $here/libs"
# Only a complete set gets this name: an interrupted download is repeated.
rm -rf "$here/libs" "$here/libs.part"
mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$here/libs.part"
mv "$here/libs.part" "$here/libs"
