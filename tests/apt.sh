# Sourced by scripts of tests/: installs packages of Debian, as root or with sudo that asks for nothing; fails without either.
apt_install() {
    command -v apt-get >/dev/null || return 1
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        sudo=(sudo -n)
    fi
    # Lists that are a few days old will often do.
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" && return
    "${sudo[@]}" apt-get update -q &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}
