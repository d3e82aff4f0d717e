# Sourced by tests/release/run: the interface of the crates that programs of users have.
libraries=(shardd-plan shardfmt shardd-ingest shardd-api shardd-store shardd-client shardd-trainer)

# check_semver PREVIOUS: whether a program that compiles with the release before compiles with this one, unless the version says not.
check_semver() {
    if [ -z "$1" ]; then
        echo "no earlier release: nothing to compare with. The next release is compared with v$version"
        return
    fi
    cargo semver-checks --baseline-rev "$1" "${libraries[@]/#/--package=}"
}

# write_public_api FILE: all public items of each library.
write_public_api() {
    local library
    : >"$1"
    for library in "${libraries[@]}"; do
        # The list is made from the JSON of nightly's rustdoc, which cargo-public-api calls.
        CARGO_TARGET_DIR=$target/release-api nice -n 10 cargo public-api --package "$library" -sss >"$work/items"
        { printf '# %s\n\n' "$library" && cat "$work/items" && echo; } >>"$1"
        printf '%7d items  %s\n' "$(wc -l <"$work/items")" "$library"
    done
}
