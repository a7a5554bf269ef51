#!/bin/sh
# Formats, vets and tests the Go client: builds the module's archive, gets it as a user does, and tests that copy against
# real servers, with the drivers of Debian's packages. FENCEGATE_BINARY is the proxy.
set -eu
cd "$(dirname "$0")"
export FENCEGATE_BINARY="${FENCEGATE_BINARY:-$(cd ../.. && pwd)/target/debug/fencegate}"
debian=/usr/share/gocode
module=$(sed -n 's/^module //p' go.mod)
version=v$(sed -n 's/^version = "\(.*\)"/\1/p' ../../Cargo.toml | head -n 1)
work=$(mktemp -d "${TMPDIR:-/tmp}/fencegate-go-XXXXXX")
trap 'rm -rf "$work"' EXIT
export GO111MODULE=on GOCACHE="${GOCACHE:-${CARGO_TARGET_DIR:-$(cd ../.. && pwd)/target}/go}" GOSUMDB=off GOTOOLCHAIN=local
unset GOFLAGS GOPATH

unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { echo "run gofmt -w: $unformatted" >&2; exit 1; }
GOPROXY=off go vet ./...
GOPROXY=off go test -race -count=1 .

# The archive, with the license as the go command adds it.
mkdir "$work/module"
cp ./*.go go.mod README.md ../../LICENSE "$work/module"
archive() {
    GO111MODULE=off GOPATH=$debian go run ./tests/archive "$1" "$2" "$3" "$work/proxy"
}
archive "$work/module" "$module" "$version"
cp -RL "$debian/src/github.com/lib/pq" "$work/pq"
archive "$work/pq" github.com/lib/pq v1.10.7

# A new module that gets the archive.
mkdir "$work/new"
(
    cd "$work/new"
    export GOPROXY="file://$work/proxy" GOPATH="$work/new/path" GOFLAGS="-mod=mod -modcacherw"
    go mod init example 2>/dev/null
    go get "$module@$version" 2>/dev/null
)

# The tests with that copy. Debian's packages are sources for GOPATH, not modules.
copy=$work/path/src/$module
mkdir -p "$(dirname "$copy")"
cp -R "$work/new/path/pkg/mod/$module@$version" "$copy"
cp -R tests "$copy/tests"
cd "$copy/tests"
export GO111MODULE=off GOPATH="$work/path:$debian" FENCEGATE_MODULES="$work/proxy"
go vet ./...
go test -race -count=1 "$@" .
