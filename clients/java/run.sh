#!/usr/bin/env bash
# Runs the tests on the packages as Maven has installed them, and an empty project that uses them, with the newest and the
# oldest libraries; `run.sh --cases` only the cases. `run.sh --install` builds all that with Maven, which fetches the libraries.
# `run.sh --package DIR` only builds the packages, and puts them there.
set -euo pipefail
cd "$(dirname "$0")"

target=$DLOCK_CLIENT_TARGET
# Of Lettuce, Jedis and ShedLock.
newest=(7.7.0.RELEASE 8.0.2 7.10.1)
oldest=(6.2.0.RELEASE 6.0.0 6.0.1)
boots=(3.0.0 3.5.7 4.1.0)
too_old=6.1.10.RELEASE
# No program here lives long enough to gain by the second compiler, which takes a third of the processor's time.
short=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC)
export MAVEN_OPTS="${MAVEN_OPTS:-} ${short[*]}"
maven() {
    mvn --batch-mode --no-transfer-progress -Dmaven.repo.local="$target/repository" -Ddlock.target="$target/build" "$@"
}
example() { # NAME LETTUCE JEDIS SHEDLOCK
    maven --quiet --file example/pom.xml -Ddlock.target="$target/$1" -Dlettuce.version="$2" -Djedis.version="$3" \
        -Dshedlock.version="$4" clean compile dependency:build-classpath -Dmdep.outputFile="$target/$1/classpath"
}
# Each program of README.md, with the dependencies that it names; the first one is that of Lettuce.
page() {
    local dir=$target/page
    rm -rf "$dir" && mkdir -p "$dir"
    {
        echo '<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId><artifactId>page</artifactId><version>1</version>'
        echo '<dependencies>'
        awk '/^```xml$/ && !n++ { on = 1; next } /^```$/ { on = 0 } on' README.md
        echo '</dependencies></project>'
    } >"$dir/pom.xml"
    maven --quiet --file "$dir/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath \
        -Dmdep.outputFile="$dir/classpath"
    awk -v dir="$dir" '/^```java$/ { on = 1; text = ""; next }
        /^```$/ { if (on && match(text, /public class [A-Za-z]+/))
            printf "%s", text >(dir "/" substr(text, RSTART + 13, RLENGTH - 13) ".java"); on = 0 }
        on { text = text $0 "\n" }' README.md
    mkdir "$dir/spring"
    mv "$dir/Orders.java" "$dir/spring"
    [ "$(find "$dir" -maxdepth 1 -name '*.java' | wc -l)" -ge 2 ]
    strictly "$(cat "$dir/classpath")" "$dir"/*.java
}
# A reader's build may refuse every warning.
strictly() { # CLASSPATH FILE…
    javac "${short[@]/#/-J}" -Xlint:all -Werror -parameters -proc:none -d "$target/page/classes" -cp "$@"
}
# A program of Spring Boot that has the starter and nothing else.
boot() { # VERSION
    maven --quiet --file boot/pom.xml -Ddlock.target="$target/boot-$1" -Dboot.version="$1" compile \
        dependency:build-classpath -Dmdep.outputFile="$target/boot-$1/classpath"
}
case ${1:-} in
--package | --install) command -v mvn >/dev/null || ../../integration/apt.sh maven ;;&
--package)
    maven --quiet -DskipTests -Ppackage package
    declare -A artifact=([core]=core [lettuce]=lettuce [jedis]=jedis [starter]=spring-boot-starter [shedlock]=shedlock)
    mkdir -p "$2"
    for module in core lettuce jedis starter shedlock; do
        cp "$target/build/dlock-${artifact[$module]}/"*.jar "$2"
        cp "$module/pom.xml" "$2/dlock-${artifact[$module]}-0.6.0-dev.pom"
    done
    cp pom.xml "$2/dlock-java-0.6.0-dev.pom"
    exit
    ;;
--install)
    maven --quiet -DskipTests install
    example newest "${newest[@]}"
    example oldest "${oldest[@]}"
    maven --quiet org.apache.maven.plugins:maven-dependency-plugin:3.8.1:get -Dartifact="io.lettuce:lettuce-core:$too_old" -Dtransitive=false
    page
    for version in "${boots[@]}"; do
        boot "$version"
        strictly "$(cat "$target/boot-$version/classpath")" "$target/page/spring/Orders.java"
    done
    exit
    ;;
esac

chosen=()
# What differs between the libraries does not depend on the server.
[ "${1:-}" != --cases ] || chosen=(--projects tests '-Dtest=CasesTest*' -Dlibraries=lettuce)
# Without the phases before it, so that nothing is built while another server's tests run.
maven --fail-at-end surefire:test "-DargLine=${short[*]}" -Ddlock.reports="$DLOCK_CLIENT_SEEN" "${chosen[@]}" || {
    # Maven ends with hints on itself. The line after a test's name says what failed, the next ones where.
    grep -rhE -A 3 '<<< (FAILURE|ERROR)!' --include='dlock.*.txt' "$DLOCK_CLIENT_SEEN"
    exit 1
}
[ "${1:-}" != --cases ] || exit 0
for versions in newest oldest; do
    java "${short[@]}" -cp "$target/$versions/example/classes:$(cat "$target/$versions/classpath")" Example
done
# A library that is too old is named when the connector is made.
lettuce=$target/repository/io/lettuce/lettuce-core/$too_old/lettuce-core-$too_old.jar
said=$(java "${short[@]}" -cp "$lettuce:$target/oldest/example/classes:$(cat "$target/oldest/classpath")" Example 2>&1) || true
[[ $said == *"Lettuce must be 6.2 or later, not $too_old"* ]] || { echo "$said"; exit 1; }
for program in "$target"/page/*.java; do
    sed "s/localhost:6379/$DLOCK_SINGLE/" "$program" >"$DLOCK_CLIENT_SEEN/$(basename "$program")"
    timeout 120 java "${short[@]}" -cp "$(cat "$target/page/classpath")" "$DLOCK_CLIENT_SEEN/$(basename "$program")"
done
for version in "${boots[@]}"; do
    timeout 120 java "${short[@]}" -cp "$target/boot-$version/shop/classes:$(cat "$target/boot-$version/classpath")" \
        -Ddlock.url="redis://$DLOCK_SINGLE" shop.ShopApplication
done
