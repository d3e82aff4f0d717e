# Sourced by the tries: they run as root in a bare Debian.
fail() { echo "FAILED: $*"; exit 1; }

[ -n "$DIGEST" ] || fail "README.md shows no digest of weights"
# Nothing here could compile or download.
for program in cc gcc cargo rustc curl wget; do
    if command -v $program >/dev/null; then fail "$program is here"; fi
done
[ "$(sed 1,2d /proc/net/dev | tr -d ' ' | cut -d : -f 1)" = lo ] || fail "there is a network"
echo "$(. /etc/os-release && echo "$PRETTY_NAME"), $(ldd --version | sed -n '1s/.* //p')"
started=$(date +%s)

seconds() { echo "$(($(date +%s) - started)) s: $*"; }

# demo COMMAND...: `shardctl demo`, with the digest of weights that README.md has.
demo() {
    "$@" demo >/tmp/demo 2>&1 || { cat /tmp/demo; fail "the demo"; }
    weights=$(sed -n 's/^ *weights *blake3 \([0-9a-f]*\)$/\1/p' /tmp/demo)
    grep -E 'test accuracy|speed|exactly once' /tmp/demo
    [ "$weights" = "$DIGEST" ] || fail "the weights are $weights, and README.md has $DIGEST"
    seconds "the demo ended with weights $weights"
}

# versions FOLDER: all three programs start, and have the version of the release.
versions() {
    for program in shardctl shardd shardtrain; do
        found=$("$1/$program" --version | head -n 1)
        [ "$found" = "$program $VERSION" ] || fail "$program --version prints $found"
    done
    seconds "three programs of version $VERSION"
}
