#!/bin/sh
# Checks the requirements of the build, the demo and the tests, and installs missing Debian packages if permitted.
# Usage: scripts/setup.sh demo|examples|bench|instructions|deb|docs|proof|test|soak|clients|drivers|compat. Silent if nothing is missing.
set -eu

wanted=${1:?usage: scripts/setup.sh demo|examples|bench|instructions|deb|docs|proof|test|soak|clients|drivers|compat}
cargo_needed=1.89

has() { command -v "$1" >/dev/null 2>&1; }

# Prints the newest matching file, or nothing.
newest() { ls -d "$@" 2>/dev/null | sort -V | tail -n 1; }

postgres_version() {
    postgres=$(newest /usr/lib/postgresql/*/bin/postgres)
    [ -n "$postgres" ] || postgres=$(command -v postgres) || { echo 0; return; }
    "$postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/'
}

# Not libclang-cpp, which other packages install.
has_libclang() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    for directory in /usr/lib/llvm-*/lib /usr/lib/*/ /usr/lib /usr/lib64; do
        [ -z "$(newest "$directory"/libclang.so* "$directory"/libclang-[0-9]*.so*)" ] || return 0
    done
    return 1
}

# bindgen reads C headers, and also needs those of the C library.
has_c_compiler() { has cc && has_c_headers; }
has_c_headers() { echo '#include <stdint.h>' | cc -E - >/dev/null 2>&1; }

has_python3() { has python3; }
# The examples and the proof use the system's Python with its packages.
has_psycopg2() { /usr/bin/python3 -c 'import psycopg2' >/dev/null 2>&1; }
has_psycopg() { /usr/bin/python3 -c 'import psycopg' >/dev/null 2>&1; }
has_z3() { /usr/bin/python3 -c 'import z3' >/dev/null 2>&1; }
# Go libraries as source code, and the compiler.
has_go_etcd() { has go && [ -e /usr/share/gocode/src/go.etcd.io/etcd/clientv3/concurrency ]; }
has_go_modules() { [ -e /usr/share/gocode/src/golang.org/x/mod/zip ]; }
has_go_postgres() { [ -e /usr/share/gocode/src/github.com/lib/pq ] && [ -e /usr/share/gocode/src/github.com/jackc/pgx/v4 ]; }
# A virtual environment contains pip only if ensurepip is installed.
has_venv() { has python3 && python3 -c 'import venv, ensurepip' >/dev/null 2>&1; }

need() { "$1" || missing="$missing $2"; }
has_postgres() { [ "$(postgres_version)" -ge 14 ] && [ -n "$(newest /usr/lib/postgresql/*/bin/pgbench)$(command -v pgbench)" ]; }
# The build of the etcd client needs these files.
has_protobuf() {
    has protoc && [ -n "$(newest /usr/include/google/protobuf/descriptor.proto "$(dirname "$(command -v protoc)")/../include/google/protobuf/descriptor.proto")" ]
}
has_etcd() { has etcd; }
has_etcdctl() { has etcdctl; }
has_openssl() { has openssl; }
has_patch() { has patch; }
has_setpriv() { [ "$(id -u)" -ne 0 ] || has setpriv; }
has_prometheus() { has prometheus && has promtool; }
has_fakeroot() { has fakeroot; }
has_lintian() { has lintian; }
has_bzip2() { has bzip2; }
has_node() { has node && has npm; }
has_redis() { has redis-server && has redis-cli; }
has_java() { has java; }
has_chromium() { has chromium; }
has_zookeeper() { [ -e /usr/share/java/zookeeper.jar ]; }
has_active_record() { has ruby && ruby -e 'require "active_record"; require "pg"' 2>/dev/null; }
# A runtime without the compiler cannot run source files.
has_jdk() { has java && java --list-modules 2>/dev/null | grep -q '^jdk.compiler'; }
has_jdbc() { [ -e /usr/share/java/postgresql.jar ]; }
has_hikari() { [ -e /usr/share/java/HikariCP.jar ] && [ -e /usr/share/java/slf4j-nop.jar ]; }
has_systemd_analyze() { has systemd-analyze; }
has_docker_compose() { has docker-compose; }
has_haproxy() { has haproxy || [ -x /usr/sbin/haproxy ]; }
has_valgrind() { has valgrind && has vgdb; }
has_pgbouncer() { has pgbouncer || [ -x /usr/sbin/pgbouncer ]; }
has_pg_regress() { [ -e /usr/lib/postgresql/15/lib/pgxs/src/test/regress/pg_regress ]; }

# Runs apt-get once no other program, such as the daily update, holds its locks. With the timeout, apt-get waits for dpkg's
# lock, but never for the locks of package lists and downloads. The first attempt does not wait, so that the user sees
# which process holds the lock.
apt_get() {
    attempts=0
    until $as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get \
        -o DPkg::Lock::Timeout=$((attempts ? 600 : 0)) "$@" >&2 2>"$apt_errors"; do
        attempts=$((attempts + 1))
        held=$(grep -m 1 '^E: Could not get lock' "$apt_errors") || held=
        if [ -z "$held" ] || [ "$attempts" -gt 300 ]; then
            cat "$apt_errors" >&2
            return 1
        fi
        [ "$attempts" -gt 1 ] || echo "waiting: ${held#E: }" >&2
        sleep 2
    done
}

find_missing() {
    missing=
    case $wanted in proof|test|soak|drivers|compat) need has_z3 "python3 python3-z3" ;; esac
    [ "$wanted" != proof ] || return 0
    if [ "$wanted" = docs ]; then
        need has_python3 python3
        need has_c_compiler "gcc libc6-dev"
        return
    fi
    need has_postgres postgresql
    need has_setpriv util-linux
    need has_libclang libclang-dev
    need has_c_compiler "gcc libc6-dev"
    need has_protobuf "protobuf-compiler libprotobuf-dev"
    need has_etcd etcd-server
    if [ "$wanted" = examples ] || [ "$wanted" = soak ]; then
        need has_psycopg2 "python3 python3-psycopg2"
        need has_psycopg "python3 python3-psycopg"
        need has_redis redis-server
    fi
    if [ "$wanted" = bench ]; then
        need has_python3 python3
        need has_openssl openssl
        need has_haproxy haproxy
        need has_pgbouncer pgbouncer
    fi
    if [ "$wanted" = instructions ]; then
        need has_valgrind valgrind
    fi
    if [ "$wanted" = clients ]; then
        need has_etcdctl etcd-client
        need has_venv python3-venv
        need has_node "nodejs npm"
        need has_go_etcd "golang-go golang-etcd-server-dev"
        need has_go_postgres "golang-github-lib-pq-dev golang-github-jackc-pgx-v4-dev"
        need has_go_modules golang-golang-x-mod-dev
    fi
    case $wanted in demo|examples|bench|instructions|deb|clients) return ;; esac
    need has_etcdctl etcd-client
    need has_openssl openssl
    need has_patch patch
    need has_python3 python3
    need has_prometheus prometheus
    need has_docker_compose docker-compose
    need has_systemd_analyze systemd
    if [ "$wanted" != test ]; then
        need has_venv python3-venv
        need has_fakeroot fakeroot
        need has_lintian lintian
        need has_bzip2 bzip2
        need has_node "nodejs npm"
        need has_active_record "ruby-activerecord ruby-pg"
        need has_java default-jre-headless
        need has_zookeeper libzookeeper-java
        need has_chromium chromium
    fi
    if [ "$wanted" = soak ]; then
        need has_haproxy haproxy
        need has_pgbouncer pgbouncer
        need has_go_etcd "golang-go golang-etcd-server-dev"
        need has_go_postgres "golang-github-lib-pq-dev golang-github-jackc-pgx-v4-dev"
        need has_go_modules golang-golang-x-mod-dev
    fi
    if [ "$wanted" = compat ]; then
        need has_pg_regress postgresql-client-15
    fi
    if [ "$wanted" = drivers ]; then
        need has_jdk default-jdk-headless
        need has_jdbc libpostgresql-jdbc-java
        need has_hikari libhikaricp-java
    fi
}

find_missing
if [ -n "$missing" ]; then
    if ! has apt-get; then
        echo "fencegate needs what Debian calls:$missing; please install it" >&2
        exit 1
    elif [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif has sudo && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        echo "please run: sudo apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    echo "installing Debian packages, and no server that runs by itself:$missing" >&2
    createcluster=/etc/postgresql-common/createcluster.conf
    apt_errors=$(mktemp)
    undo() {
        rm -f "$apt_errors"
        $as_root rm -f ${policy:-}
        # Restore the package's own configuration file, which it does not install over an existing one.
        [ -z "${mine:-}" ] || $as_root cp "/usr/share/postgresql-common/${createcluster##*/}" "$createcluster" ||
            $as_root rm -f "$createcluster"
    }
    trap undo EXIT
    case "$missing" in *postgresql*)
        # Prevents the package from creating and starting a cluster. Keeps a configuration of the user.
        if [ ! -e "$createcluster" ]; then
            mine=yes
            $as_root mkdir -p "${createcluster%/*}"
            echo "create_main_cluster = false" | $as_root tee "$createcluster" >/dev/null
        fi ;;
    esac
    case "$missing" in *etcd-server*|*prometheus*|*redis-server*|*haproxy*|*pgbouncer*)
        # Prevents the packages from starting their servers, now and whenever the machine boots.
        if [ ! -e /usr/sbin/policy-rc.d ]; then
            policy=/usr/sbin/policy-rc.d
            printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
            $as_root chmod +x "$policy"
        fi ;;
    esac
    apt_get update -qq
    # Keep the configuration file written above, without asking.
    apt_get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold -o Dpkg::Use-Pty=0 $missing
    for service in etcd prometheus redis-server haproxy pgbouncer; do
        case "$missing" in *"$service"*)
            ! has systemctl || $as_root systemctl disable --quiet "$service" 2>/dev/null || true ;;
        esac
    done
    find_missing
    if [ -n "$missing" ]; then
        echo "what this system's packages offer is not enough (PostgreSQL 14 or later is needed); missing:$missing" >&2
        exit 1
    fi
fi

[ "$wanted" != proof ] || exit 0
cargo_version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
if [ "$(printf '%s\n' "$cargo_needed" "${cargo_version:-0}" | sort -V | head -n 1)" != "$cargo_needed" ]; then
    echo "fencegate needs cargo $cargo_needed or later, found ${cargo_version:-none}: see https://rustup.rs" >&2
    exit 1
fi

if [ "$wanted" = docs ]; then
    tools=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/tools
    [ ! -x "$tools/bin/mdbook" ] || exit 0
    mkdir -p "$tools"
    # Only the search feature: building the server and the file watcher takes longer.
    env -u CARGO_TARGET_DIR cargo install --locked --root "$tools" mdbook --version 0.5.4 --no-default-features --features search \
        >"$tools/mdbook.log" 2>&1 || {
        echo "cargo cannot install mdBook 0.5.4 ($tools/mdbook.log has the reason); put a program mdbook into $tools/bin" >&2
        exit 1
    }
    exit 0
fi
case $wanted in deb|soak)
    # Private to this project: installs nothing in the user's ~/.cargo/bin.
    tools=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/tools
    [ -x "$tools/bin/cargo-deb" ] || env -u CARGO_TARGET_DIR cargo install --locked --quiet --root "$tools" cargo-deb ;;
esac
