# Sourced by tests/release/run: bare Debian systems in folders, in which the files of a release are tried.
systems=$target/release-systems

# bare_system SUITE: makes it once: the smallest Debian, and Python with venv.
bare_system() {
    if [ -e "$systems/$1.made" ]; then return; fi
    rm -rf "${systems:?}/$1"
    mkdir -p "$systems"
    nice -n 10 debootstrap --variant=minbase --include=python3-venv "$1" "$systems/$1" >"$systems/$1.log" || { tail "$systems/$1.log"; return 1; }
    if mountpoint -q "$systems/$1/proc"; then umount "$systems/$1/proc"; fi
    touch "$systems/$1.made"
}

# try_in SUITE TRY DIGEST: runs tests/release/tries/TRY in a copy of the system that is thrown away, with no network but loopback.
# The files of the release are in /release there, other packages of Python in /packages. DIGEST is that of the weights of `shardctl demo`.
try_in() {
    local system=$systems/$1 copy=$work/copy
    printf -- '--- %s in %s\n' "$2" "$1"
    mkdir -p "$copy"
    unshare --net --mount --pid --ipc --uts --fork --kill-child bash -euc '
        system=$1 copy=$2 out=$3 tries=$4 packages=$8
        mount -t tmpfs tmpfs "$copy"
        mkdir "$copy"/{changes,scratch,root}
        mount -t overlay overlay -o "lowerdir=$system,upperdir=$copy/changes,workdir=$copy/scratch" "$copy/root"
        root=$copy/root
        mkdir -p "$root"/{release,tries,packages}
        mount --bind -o ro "$out" "$root/release"
        mount --bind -o ro "$tries" "$root/tries"
        mount --bind -o ro "$packages" "$root/packages"
        mount -t proc proc "$root/proc"
        mount -t tmpfs tmpfs "$root/dev"
        for device in null zero full random urandom tty; do
            touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
        done
        mkdir "$root/dev/shm" && ln -s /proc/self/fd "$root/dev/fd"
        chmod 1777 "$root/dev/shm"
        ip link set lo up
        exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 VERSION="$6" DIGEST="$7" \
            /bin/sh -eu "/tries/$5"
    ' try "$system" "$copy" "$out" "$PWD/tests/release/tries" "$2" "$version" "$3" "$work/packages"
}
