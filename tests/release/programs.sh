# Sourced by tests/release/run: compiles the programs and the loader of a release, for the oldest glibc that it supports.
platform=x86_64-unknown-linux-gnu
glibc=2.28
packages=(shardctl shardd shardd-trainer shardd-python)
# Whatever needs nothing of the machine it runs on. GPUs are left out: a release is tried on machines without one.
features=shardd/cluster-etcd,shardd/otlp,shardd-trainer/otlp,shardd/aws-profiles,shardctl/aws-profiles,shardd-trainer/aws-profiles,shardctl/audio,shardd-trainer/audio

# compile_programs TARGET_DIR: they are in TARGET_DIR/$platform/release. No path of this machine is in them: sources are below
# /shardd and /crates, made files below /target.
compile_programs() (
    export CARGO_TARGET_DIR=$1 CARGO_INCREMENTAL=0 SOURCE_DATE_EPOCH=$epoch
    cargo fetch --locked --target $platform || exit 1
    local registry map rust_flags='' c_flags=''
    local maps=("$1=/target" "$PWD=/shardd")
    for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do maps+=("${registry%/}=/crates"); done
    for map in "${maps[@]}"; do
        rust_flags+=$'\x1f'--remap-path-prefix=$map
        c_flags+=" -ffile-prefix-map=$map"
    done
    export CARGO_ENCODED_RUSTFLAGS=${rust_flags#$'\x1f'}
    export CFLAGS_x86_64_unknown_linux_gnu=${c_flags# } CXXFLAGS_x86_64_unknown_linux_gnu=${c_flags# }
    nice -n 10 cargo zigbuild --release --locked --timings --target $platform.$glibc "${packages[@]/#/--package=}" --bins --lib --features $features
)

# made_programs TARGET_DIR: the four files that it made.
made_programs() { printf '%s\n' "$1/$platform/release/"{shardctl,shardd,shardtrain,libshardd_python.so}; }

# check_programs TARGET_DIR: that they start with the oldest glibc, need no other library, and name no path of this machine.
check_programs() {
    local file newest needed named failed=0
    while read -r file; do
        if [ ! -s "$file" ]; then echo "there is no $file" && return 1; fi
        # What grep does not find is no error.
        newest=$(readelf --version-info "$file" | { grep -o 'GLIBC_[0-9.]*' || true; } | sort -uV | tail -n 1)
        if [ "$(printf '%s\nGLIBC_%s\n' "$newest" $glibc | sort -V | tail -n 1)" != GLIBC_$glibc ]; then
            echo "$file needs $newest" && failed=1
        fi
        needed=$(readelf --dynamic "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            { grep -vE '^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so\.[0-9]+$' || true; })
        if [ -n "$needed" ]; then echo "$file needs" $needed && failed=1; fi
        named=$(strings -n 6 "$file" | { grep -F -e "$PWD/" -e "$1/" -e "${CARGO_HOME:-$HOME/.cargo}/" -e "$HOME/" || true; } | sort -u | sed -n 1,5p)
        if [ -n "$named" ]; then echo "$file names $named" && failed=1; fi
        printf '%7.1f MB  %s, %s\n' "$(stat -c %s "$file" | awk '{print $1 / 1e6}')" "${file##*/}" "$newest"
    done < <(made_programs "$1")
    return $failed
}
